/* diel.h: modules of a diel run in C and C++: library = "./solver.so:run" in the workflow file.
 *
 *     #include <mpi.h>    // before diel.h, if the module uses MPI
 *     #include <diel.h>
 *
 *     int run(diel *d) {                                // extern "C" in C++
 *         double dt = 0.1, x[100];
 *         diel_option_double(d, "solver.dt", &dt);      // stays 0.1 where the file has no such option
 *         if (diel_get_doubles(d, "start", x, 100, -1)) return 1;
 *         ...
 *         return diel_put_doubles(d, "result", x, 100);
 *     }
 *
 *     cc -shared -fPIC $(diel config --cflags) -o solver.so solver.c
 *
 * There is nothing to link. C99 or C++11, POSIX. All calls return one of the codes below, and
 * diel_error(d) is the text of the last one that was not done. An error is kept, and fails the copy
 * when the function returns, whatever it returns, unless diel_clear_error says that it was dealt
 * with. Another return value than 0 fails the copy in any case. Timeouts are in seconds, and below 0
 * there is none. Tags are written as for `diel tuple`: "name", "job/3", "job/" followed by a star for
 * any, or a JSON list. The calls are for the thread that the function was called in.
 */
#ifndef DIEL_H
#define DIEL_H

#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DIEL_ABI 1

/* What calls return. LATE and ABSENT are no errors. */
enum {
    DIEL_DONE = 0,
    DIEL_LATE = 1,    /* nothing came, or there was no room, within the timeout */
    DIEL_FAILED = 2,  /* diel_error(d) says why */
    DIEL_STOPPED = 3, /* the run, or this copy, is ending: return from the function */
    DIEL_ABSENT = 4   /* there is no such option, or no saved state of that name */
};

/* What a value is: the type of the elements of an array, or text. */
enum {
    DIEL_BOOL = 1,
    DIEL_INT8 = 2,
    DIEL_INT16 = 3,
    DIEL_INT32 = 4,
    DIEL_INT64 = 5,
    DIEL_UINT8 = 6,
    DIEL_UINT16 = 7,
    DIEL_UINT32 = 8,
    DIEL_UINT64 = 9,
    DIEL_FLOAT32 = 10,
    DIEL_FLOAT64 = 11,
    DIEL_COMPLEX64 = 12,
    DIEL_COMPLEX128 = 13,
    DIEL_BYTES = 20,
    DIEL_TEXT = 21, /* UTF-8; a null character behind it is not counted */
    DIEL_JSON = 22  /* another value of Python, as JSON text */
};

enum { DIEL_DEBUG = 10, DIEL_INFO = 20, DIEL_WARNING = 30, DIEL_ERROR = 40 };
enum { DIEL_TAKE = 0, DIEL_READ = 1, DIEL_CLAIM = 2 };
enum { DIEL_STRIPED = 1, DIEL_VISIBLE = 2, DIEL_IF_ABSENT = 4 }; /* flags of a put */
enum { DIEL_ACKNOWLEDGE = 0, DIEL_GIVE_BACK = 1, DIEL_RENEW = 2 };
enum { DIEL_SEND = 0, DIEL_MOVE = 1 };
enum { DIEL_GO_ON = 0, DIEL_STOP_NOW = 1, DIEL_ENDS_SOON = 2 };
enum { DIEL_EXCHANGE = 0, DIEL_PUSH = 1, DIEL_PULL = 2 };
enum { DIEL_OWNED = 0, DIEL_READS = 1 }; /* the kinds of sections of a boundary */
enum { DIEL_OF_COPY = 0, DIEL_OF_MODULE = 1 };
enum { DIEL_MOST_AXES = 8 };

/* A value: an array of which the last index varies fastest, or text. ndim 0 is a number. */
typedef struct diel_array {
    void *data;
    int64_t bytes;                 /* of all of it */
    int64_t shape[DIEL_MOST_AXES]; /* of text and bytes shape[0] is their length */
    int32_t dtype;
    int32_t ndim;
    int64_t owner; /* not 0 where diel owns the memory: until diel_free, or the function returns */
} diel_array;

typedef struct diel_address {
    char module[256];
    int32_t copy, rank; /* from 0 */
} diel_address;

typedef struct diel_boundary {
    int32_t number;
    int32_t owned, read; /* how many sections of it this rank owns and reads */
    int32_t lanes;       /* for diel_exchange only: their number, or one of these */
    void *memory;
} diel_boundary;
enum { DIEL_LANES_UNKNOWN = 0, DIEL_NO_LANES = -1, DIEL_EMPTY_LANES = -2 };

/* What one rank sends to another in each exchange. */
typedef struct diel_lane {
    void *data;
    int64_t bytes; /* 0 where the elements are not one behind the other */
    int64_t shape[DIEL_MOST_AXES], strides[DIEL_MOST_AXES]; /* in bytes */
    int32_t ndim, item_bytes, peer, tag, is_send, unused;
} diel_lane;

struct diel_calls;

typedef struct diel {
    int32_t abi;
    int32_t bytes; /* of this struct, in the diel that calls */
    const struct diel_calls *calls;
    void *context;
    int32_t copy, copies; /* which copy of the module this is, from 0, and how many there are */
    int32_t rank, ranks;  /* which rank of the copy this is, from 0, and how many it has */
    int32_t threads;
    int32_t depth; /* how many numbers the iteration has: one for each enclosing group */
    int32_t iteration[DIEL_MOST_AXES];
    const char *module, *group, *run_dir, *folder;
    const char *element; /* its name in a group with foreach, else empty */
    const char *session; /* different each time that the run is started */
    char error[1024];
} diel;

/* The calls, as the rank, or the client in an executable, serves them. More are added at the end. */
typedef struct diel_calls {
    int64_t count; /* of the pointers below */
    int32_t (*option)(diel *, const char *path, int32_t dtype, void *out, int64_t room,
                      int64_t *count);
    int32_t (*log)(diel *, int32_t level, const char *text);
    int32_t (*put)(diel *, const char *tag, const diel_array *value, int32_t flags,
                   double timeout_s);
    int32_t (*get)(diel *, int32_t how, const char *tag, diel_array *value, double timeout_s);
    int32_t (*matched)(diel *, char *tag, int64_t room);
    int32_t (*release)(diel *, diel_array *value);
    int32_t (*claim_end)(diel *, int32_t how, int64_t claim, double lease_s);
    int32_t (*claim)(diel *, const char *tag, diel_array *value, int64_t *claim, double timeout_s,
                     double lease_s);
    int32_t (*count_tuples)(diel *, const char *tag, int64_t *count);
    int32_t (*increment)(diel *, const char *tag, double by, double *sum);
    int32_t (*flush)(diel *);
    int32_t (*comm)(diel *, int32_t whose, int32_t *handle);
    int32_t (*clear_error)(diel *);
    int32_t (*must_stop)(diel *, int32_t *what);
    int32_t (*time_left)(diel *, double *seconds);
    int32_t (*send)(diel *, int32_t how, const char *module, int32_t copy, int32_t rank,
                    const char *tag, const diel_array *value, double timeout_s);
    int32_t (*recv)(diel *, const char *module, int32_t copy, int32_t rank, const char *tag,
                    diel_array *value, diel_address *source, double timeout_s);
    int32_t (*peers)(diel *, const char *module, int32_t *copies, int32_t *ranks);
    int32_t (*boundary)(diel *, const char *name, int32_t *number, int32_t *owned, int32_t *read);
    int32_t (*section)(diel *, int32_t boundary, int32_t kind, int32_t index, diel_array *section,
                       int64_t *start);
    int32_t (*bind)(diel *, int32_t boundary, int32_t kind, int32_t index, void *data,
                    const int64_t *strides);
    int32_t (*whole)(diel *, int32_t boundary, diel_array *whole);
    int32_t (*exchange)(diel *, int32_t boundary, int32_t how, double timeout_s, int64_t *step);
    int32_t (*save)(diel *, const char *name, const diel_array *value);
    int32_t (*checkpoint)(diel *);
    int32_t (*restore)(diel *, const char *name, diel_array *value);
    int32_t (*result)(diel *, const char *name, const diel_array *value);
    int32_t (*progress)(diel *, double done, double total, const char *text);
    int32_t (*allow_loss)(diel *);
    /* For diel_exchange with MPI: what to send and receive, waits, and their end. */
    int32_t (*lanes)(diel *, int32_t boundary, int32_t request_bytes, const struct diel_lane **lanes,
                     int32_t *count, int32_t *comm, void **memory);
    int32_t (*lane_wait)(diel *, int32_t boundary, double timeout_s);
    int32_t (*lane_done)(diel *, int32_t boundary);
    /* For diel_put and diel_get of bytes, without a timeout: the same, sooner. */
    int32_t (*put_bytes)(diel *, const char *tag, const void *data, int64_t size);
    int32_t (*get_bytes)(diel *, const char *tag, void *data, int64_t room, int64_t *size);
} diel_calls;

/* What the loader reads before it calls anything: the versions of this file, and of MPI. */
#define DIEL_EXPORT_ __attribute__((weak, visibility("default")))
extern DIEL_EXPORT_ const int32_t diel_header_[4];
const int32_t diel_header_[4] = {DIEL_ABI, (int32_t)sizeof(diel), (int32_t)sizeof(diel_calls),
                                 (int32_t)sizeof(diel_array)};
#ifdef MPI_VERSION
#define DIEL_WORDS_(x) #x
#define DIEL_WORD_(x) DIEL_WORDS_(x)
extern DIEL_EXPORT_ const char diel_mpi_[64];
const char diel_mpi_[64] =
#if defined(OMPI_MAJOR_VERSION)
    "Open MPI " DIEL_WORD_(OMPI_MAJOR_VERSION) "." DIEL_WORD_(OMPI_MINOR_VERSION);
#elif defined(MPICH_VERSION)
    "MPICH " MPICH_VERSION;
#else
    "MPI " DIEL_WORD_(MPI_VERSION) "." DIEL_WORD_(MPI_SUBVERSION);
#endif
#endif

/* -- the C stack of a crash, for the rank's crash file ------------------------------------------ */

#ifdef __GLIBC__
#include <execinfo.h>
#include <signal.h>
#include <unistd.h>

typedef struct diel_crash {
    int32_t descriptor, is_running, count, signals[5];
    unsigned char before[5][256]; /* what handled each signal */
} diel_crash;

/* Under another name, since -std=c99 hides it, and the struct that it takes. */
extern int diel_sigaction_(int, const void *, void *) __asm__("sigaction");

extern DIEL_EXPORT_ diel_crash diel_crash_;
diel_crash diel_crash_;
DIEL_EXPORT_ void diel_crashed_(int number);
DIEL_EXPORT_ void diel_exited_(int status, void *unused);

static inline void diel_write_frames_(const char *title) {
    void *frames[64];
    int count = backtrace(frames, 64);
    if (write(diel_crash_.descriptor, title, strlen(title)) < 0) return;
    backtrace_symbols_fd(frames, count, diel_crash_.descriptor);
    if (write(diel_crash_.descriptor, "\n", 1) < 0) return;
}

void diel_crashed_(int number) {
    int i;
    diel_write_frames_("C stack, innermost first:\n");
    for (i = 0; i < diel_crash_.count; i++)
        if (diel_crash_.signals[i] == number) diel_sigaction_(number, diel_crash_.before[i], NULL);
    raise(number);
}

void diel_exited_(int status, void *unused) {
    char title[64];
    (void)unused;
    if (!diel_crash_.is_running) return;
    snprintf(title, sizeof title, "exit(%d) in a library\nC stack, innermost first:\n", status);
    diel_write_frames_(title);
}
#endif

/* -- errors ------------------------------------------------------------------------------------ */

static inline const char *diel_error(const diel *d) { return d->error; }

/* Say that the errors so far were dealt with, so that they do not fail the copy. */
static inline int diel_clear_error(diel *d) { return d->calls->clear_error(d); }

static inline int diel_fail_(diel *d, const char *why) {
    snprintf(d->error, sizeof d->error, "%s", why);
    return DIEL_FAILED;
}

/* -- options, and the log ---------------------------------------------------------------------- */

/* The path of an option has dots between keys and indices: "solver.dt", "stages.0.name". */
static inline int diel_has_option(diel *d, const char *path) {
    int64_t count;
    return d->calls->option(d, path, 0, NULL, 0, &count) == DIEL_DONE;
}

static inline int diel_option_double(diel *d, const char *path, double *x) {
    int64_t count;
    return d->calls->option(d, path, DIEL_FLOAT64, x, -1, &count);
}

static inline int diel_option_int(diel *d, const char *path, int64_t *x) {
    int64_t count;
    return d->calls->option(d, path, DIEL_INT64, x, -1, &count);
}

static inline int diel_option_bool(diel *d, const char *path, int *x) {
    int64_t count;
    unsigned char is_true = 0;
    int status = d->calls->option(d, path, DIEL_BOOL, &is_true, -1, &count);
    if (status == DIEL_DONE) *x = is_true;
    return status;
}

/* Text with a null character behind it; `room` is the size of `text` in bytes. */
static inline int diel_option_text(diel *d, const char *path, char *text, int64_t room) {
    int64_t count;
    return d->calls->option(d, path, DIEL_TEXT, text, room, &count);
}

/* Any option, also a table, as JSON text. */
static inline int diel_option_json(diel *d, const char *path, char *text, int64_t room) {
    int64_t count;
    return d->calls->option(d, path, DIEL_JSON, text, room, &count);
}

/* A list of numbers, of which `count` says how many there are; it fails if they are more than room. */
static inline int diel_option_doubles(diel *d, const char *path, double *x, int64_t room,
                                      int64_t *count) {
    return d->calls->option(d, path, DIEL_FLOAT64, x, room, count);
}

static inline int diel_option_ints(diel *d, const char *path, int64_t *x, int64_t room,
                                   int64_t *count) {
    return d->calls->option(d, path, DIEL_INT64, x, room, count);
}

static inline int diel_log(diel *d, int level, const char *text) {
    return d->calls->log(d, level, text);
}

/* As printf, in at most 1,023 bytes. */
static inline int diel_logf(diel *d, int level, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return d->calls->log(d, level, text);
}

/* -- values ------------------------------------------------------------------------------------ */

static inline int64_t diel_item_bytes(int dtype) {
    static const signed char sizes[] = {0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 4, 8, 8, 16};
    return dtype >= DIEL_BOOL && dtype <= DIEL_COMPLEX128 ? sizes[dtype] : 1;
}

static inline diel_array diel_array_of(int dtype, const void *data, int ndim,
                                       const int64_t *shape) {
    diel_array value;
    int axis;
    memset(&value, 0, sizeof value);
    value.data = (void *)data;
    value.dtype = dtype;
    value.ndim = ndim;
    value.bytes = diel_item_bytes(dtype);
    for (axis = 0; axis < ndim && axis < DIEL_MOST_AXES; axis++) {
        value.shape[axis] = shape[axis];
        value.bytes *= shape[axis];
    }
    return value;
}

static inline diel_array diel_vector(int dtype, const void *data, int64_t length) {
    return diel_array_of(dtype, data, 1, &length);
}

static inline diel_array diel_matrix(int dtype, const void *data, int64_t rows, int64_t columns) {
    int64_t shape[2];
    shape[0] = rows;
    shape[1] = columns;
    return diel_array_of(dtype, data, 2, shape);
}

static inline diel_array diel_number(int dtype, const void *data) {
    return diel_array_of(dtype, data, 0, NULL);
}

/* Give memory back that diel owns; nothing is done for other memory. */
static inline int diel_free(diel *d, diel_array *value) {
    if (value->owner != 0) return d->calls->release(d, value);
    return DIEL_DONE;
}

/* -- the tuple space --------------------------------------------------------------------------- */

/* Put a value; it may be changed when this returns. */
static inline int diel_put(diel *d, const char *tag, const diel_array *value) {
    if (value->dtype == DIEL_BYTES && value->data != NULL)
        return d->calls->put_bytes(d, tag, value->data, value->bytes);
    return d->calls->put(d, tag, value, 0, -1);
}

/* With any of DIEL_STRIPED (in pieces on all servers), DIEL_VISIBLE (all ranks can see it when this
 * returns) and DIEL_IF_ABSENT (DIEL_ABSENT if there is such a tuple already). */
static inline int diel_put_with(diel *d, const char *tag, const diel_array *value, int flags,
                                double timeout_s) {
    return d->calls->put(d, tag, value, flags, timeout_s);
}

static inline int diel_put_double(diel *d, const char *tag, double x) {
    diel_array value = diel_number(DIEL_FLOAT64, &x);
    return d->calls->put(d, tag, &value, 0, -1);
}

static inline int diel_put_int(diel *d, const char *tag, int64_t x) {
    diel_array value = diel_number(DIEL_INT64, &x);
    return d->calls->put(d, tag, &value, 0, -1);
}

static inline int diel_put_doubles(diel *d, const char *tag, const double *x, int64_t length) {
    diel_array value = diel_vector(DIEL_FLOAT64, x, length);
    return d->calls->put(d, tag, &value, 0, -1);
}

static inline int diel_put_text(diel *d, const char *tag, const char *text) {
    diel_array value = diel_vector(DIEL_TEXT, text, (int64_t)strlen(text));
    return d->calls->put(d, tag, &value, 0, -1);
}

static inline int diel_put_bytes(diel *d, const char *tag, const void *data, int64_t length) {
    return d->calls->put_bytes(d, tag, data, length);
}

/* Take the oldest tuple that matches. Where value->data is NULL it is set to memory that diel owns,
 * until diel_free or the next value in the same struct; else the tuple has to have the dtype and shape of `value`, and is copied
 * there: one that does not fit stays in the space. Text and bytes fit that are no longer; shape[0]
 * is their length then. */
static inline int diel_get(diel *d, const char *tag, diel_array *value, double timeout_s) {
    if (value->dtype == DIEL_BYTES && value->data != NULL && value->owner == 0 && timeout_s < 0) {
        int status = d->calls->get_bytes(d, tag, value->data, value->bytes, &value->bytes);
        value->shape[0] = value->bytes;
        return status;
    }
    return d->calls->get(d, DIEL_TAKE, tag, value, timeout_s);
}

/* As diel_get; the tuple stays. */
static inline int diel_read(diel *d, const char *tag, diel_array *value, double timeout_s) {
    return d->calls->get(d, DIEL_READ, tag, value, timeout_s);
}

static inline int diel_get_double(diel *d, const char *tag, double *x, double timeout_s) {
    diel_array value = diel_number(DIEL_FLOAT64, x);
    return d->calls->get(d, DIEL_TAKE, tag, &value, timeout_s);
}

static inline int diel_get_int(diel *d, const char *tag, int64_t *x, double timeout_s) {
    diel_array value = diel_number(DIEL_INT64, x);
    return d->calls->get(d, DIEL_TAKE, tag, &value, timeout_s);
}

static inline int diel_get_doubles(diel *d, const char *tag, double *x, int64_t length,
                                   double timeout_s) {
    diel_array value = diel_vector(DIEL_FLOAT64, x, length);
    return d->calls->get(d, DIEL_TAKE, tag, &value, timeout_s);
}

static inline int diel_read_doubles(diel *d, const char *tag, double *x, int64_t length,
                                    double timeout_s) {
    diel_array value = diel_vector(DIEL_FLOAT64, x, length);
    return d->calls->get(d, DIEL_READ, tag, &value, timeout_s);
}

/* The tag of the last tuple that a get, read or claim with a star has matched. */
static inline int diel_matched_tag(diel *d, char *tag, int64_t room) {
    return d->calls->matched(d, tag, room);
}

/* Take a tuple until the work on it is done: it is given back if this rank fails or dies. `claim` is
 * its number; with a lease of 0 it has no end. */
static inline int diel_claim(diel *d, const char *tag, diel_array *value, int64_t *claim,
                             double timeout_s, double lease_s) {
    return d->calls->claim(d, tag, value, claim, timeout_s, lease_s);
}

static inline int diel_acknowledge(diel *d, int64_t claim) {
    return d->calls->claim_end(d, DIEL_ACKNOWLEDGE, claim, 0);
}

static inline int diel_give_back(diel *d, int64_t claim) {
    return d->calls->claim_end(d, DIEL_GIVE_BACK, claim, 0);
}

static inline int diel_renew(diel *d, int64_t claim, double lease_s) {
    return d->calls->claim_end(d, DIEL_RENEW, claim, lease_s);
}

/* How many tuples match, claimed ones excluded. */
static inline int diel_count(diel *d, const char *tag, int64_t *count) {
    return d->calls->count_tuples(d, tag, count);
}

/* Add to the number in a tuple, atomically; `sum` may be NULL. Whole numbers stay whole. */
static inline int diel_increment(diel *d, const char *tag, double by, double *sum) {
    return d->calls->increment(d, tag, by, sum);
}

/* Wait until all tuples that this rank has put are in the space. */
static inline int diel_flush(diel *d) { return d->calls->flush(d); }

/* -- messages between ranks of a group --------------------------------------------------------- */

/* How many copies a module of the group has, and how many ranks all of them have together. */
static inline int diel_peers(diel *d, const char *module, int32_t *copies, int32_t *ranks) {
    return d->calls->peers(d, module, copies, ranks);
}

/* Send a value to a rank of a copy, both from 0; never waits, and the value may be changed at once.
 * Only a receive with the same tag receives it; a tag of NULL is one too. */
static inline int diel_send(diel *d, const char *module, int copy, int rank, const char *tag,
                            const diel_array *value) {
    return d->calls->send(d, DIEL_SEND, module, copy, rank, tag, value, -1);
}

/* Send a value without a copy of it, and wait until it has been received. */
static inline int diel_move(diel *d, const char *module, int copy, int rank, const char *tag,
                            const diel_array *value, double timeout_s) {
    return d->calls->send(d, DIEL_MOVE, module, copy, rank, tag, value, timeout_s);
}

/* Receive a value, as diel_get does: into memory that is given, or handed out. A module of NULL
 * stands for any rank; `source` says which it was, and may be NULL. */
static inline int diel_recv(diel *d, const char *module, int copy, int rank, const char *tag,
                            diel_array *value, diel_address *source, double timeout_s) {
    return d->calls->recv(d, module, copy, rank, tag, value, source, timeout_s);
}

static inline int diel_send_doubles(diel *d, const char *module, int copy, int rank,
                                    const char *tag, const double *x, int64_t length) {
    diel_array value = diel_vector(DIEL_FLOAT64, x, length);
    return d->calls->send(d, DIEL_SEND, module, copy, rank, tag, &value, -1);
}

static inline int diel_recv_doubles(diel *d, const char *module, int copy, int rank,
                                    const char *tag, double *x, int64_t length, double timeout_s) {
    diel_array value = diel_vector(DIEL_FLOAT64, x, length);
    return d->calls->recv(d, module, copy, rank, tag, &value, NULL, timeout_s);
}

/* -- boundaries: sections of an array that modules share ---------------------------------------- */

/* Open a [[boundary]] of the workflow file. Then bind memory to each section, or use the array of
 * diel_boundary_array. */
static inline int diel_boundary_open(diel *d, const char *name, diel_boundary *b) {
    memset(b, 0, sizeof *b);
    return d->calls->boundary(d, name, &b->number, &b->owned, &b->read);
}

/* What a section is: its dtype and shape, without data, and where in the boundary it begins; kind is
 * DIEL_OWNED or DIEL_READS, and `start`, of ndim numbers, may be NULL. */
static inline int diel_section(diel *d, const diel_boundary *b, int kind, int index,
                               diel_array *section, int64_t *start) {
    return d->calls->section(d, b->number, kind, index, section, start);
}

/* Let memory be that of a section, before the first exchange: it is sent and received into as it is,
 * and has to stay until the function returns. `strides` has for each axis how many elements are
 * from one index to the next, and is NULL where they are one behind the other. Bind all sections of
 * a kind, or none. */
static inline int diel_bind(diel *d, const diel_boundary *b, int kind, int index, void *data,
                            const int64_t *strides) {
    return d->calls->bind(d, b->number, kind, index, data, strides);
}

/* The whole array of a boundary, in memory of diel, whose indices mean the same on all ranks; only
 * the sections that this rank owns and reads are used, where they are not bound. */
static inline int diel_boundary_array(diel *d, const diel_boundary *b, diel_array *whole) {
    return d->calls->whole(d, b->number, whole);
}

/* Send the sections that this rank owns to the ranks that read them; they are copied. */
static inline int diel_push(diel *d, diel_boundary *b, double timeout_s) {
    return d->calls->exchange(d, b->number, DIEL_PUSH, timeout_s, NULL);
}

/* Receive the sections that this rank reads; `step`, which may be NULL, says of which push. */
static inline int diel_pull(diel *d, diel_boundary *b, double timeout_s, int64_t *step) {
    return d->calls->exchange(d, b->number, DIEL_PULL, timeout_s, step);
}

#ifdef MPI_VERSION
/* The memory of lanes, which diel owns: whether they were made and are started, and the requests. */
typedef struct diel_requests {
    int64_t are_made, are_active;
    MPI_Request requests[1];
} diel_requests;

static inline int diel_make_request_(const diel_lane *lane, MPI_Comm comm, MPI_Request *request) {
    MPI_Datatype type = MPI_BYTE, outer;
    int axis, failed = 0, count = 1;
    if (lane->bytes > 0) count = (int)lane->bytes;
    else {
        failed |= MPI_Type_contiguous(lane->item_bytes, MPI_BYTE, &type);
        for (axis = lane->ndim - 1; axis >= 0; axis--) {
            failed |= MPI_Type_create_hvector((int)lane->shape[axis], 1,
                                              (MPI_Aint)lane->strides[axis], type, &outer);
            MPI_Type_free(&type);
            type = outer;
        }
        failed |= MPI_Type_commit(&type);
    }
    if (lane->is_send)
        failed |= MPI_Send_init(lane->data, count, type, lane->peer, lane->tag, comm, request);
    else failed |= MPI_Recv_init(lane->data, count, type, lane->peer, lane->tag, comm, request);
    if (lane->bytes <= 0) MPI_Type_free(&type);
    return failed;
}

static inline int diel_make_lanes_(diel *d, diel_boundary *b) {
    const diel_lane *lanes = NULL;
    diel_requests *made;
    int32_t count = 0, comm = 0, i;
    int status = d->calls->lanes(d, b->number, (int32_t)sizeof(MPI_Request), &lanes, &count, &comm,
                                 &b->memory);
    if (status == DIEL_ABSENT) b->lanes = DIEL_NO_LANES;
    if (status != DIEL_DONE) return status == DIEL_ABSENT ? DIEL_DONE : status;
    b->lanes = count > 0 ? count : DIEL_EMPTY_LANES;
    made = (diel_requests *)b->memory;
    if (count <= 0 || made->are_made) return DIEL_DONE;
    for (i = 0; i < count; i++) made->requests[i] = MPI_REQUEST_NULL;
    made->are_made = 1;
    for (i = 0; i < count; i++)
        if (diel_make_request_(&lanes[i], MPI_Comm_f2c((MPI_Fint)comm), &made->requests[i]))
            return diel_fail_(d, "MPI has not made a persistent request for the boundary");
    return DIEL_DONE;
}

static inline int diel_run_lanes_(diel *d, diel_boundary *b, double timeout_s) {
    diel_requests *made = (diel_requests *)b->memory;
    int is_done = 0, has_waited = 0, i, status;
    double since_s = 0, now_s;
    if (!made->are_active && MPI_Startall(b->lanes, made->requests) != MPI_SUCCESS)
        return diel_fail_(d, "MPI has not started the exchange of the boundary");
    made->are_active = 1;
    for (;;) {
        for (i = 0; i < 50 && !is_done; i++)
            if (MPI_Testall(b->lanes, made->requests, &is_done, MPI_STATUSES_IGNORE) != MPI_SUCCESS)
                return diel_fail_(d, "MPI has not ended the exchange of the boundary");
        if (is_done) break;
        now_s = MPI_Wtime();
        if (since_s == 0) since_s = now_s;
        if (!has_waited && now_s - since_s < 5e-4) {
            sched_yield();
            continue;
        }
        has_waited = 1; /* this sleeps a little, and looks whether the run stops */
        status = d->calls->lane_wait(d, b->number, timeout_s);
        if (status != DIEL_DONE) return status;
    }
    made->are_active = 0;
    return has_waited ? d->calls->lane_done(d, b->number) : DIEL_DONE;
}

/* Called at the end of a copy. */
DIEL_EXPORT_ void diel_end_lanes_(void *memory, int32_t count, int32_t receives);
void diel_end_lanes_(void *memory, int32_t count, int32_t receives) {
    diel_requests *made = (diel_requests *)memory;
    int32_t i;
    int is_done;
    for (i = 0; i < count && made->are_made; i++) {
        if (made->requests[i] == MPI_REQUEST_NULL) continue;
        MPI_Test(&made->requests[i], &is_done, MPI_STATUS_IGNORE);
        if (!is_done && i < receives) {
            MPI_Cancel(&made->requests[i]);
            MPI_Wait(&made->requests[i], MPI_STATUS_IGNORE);
        }
        MPI_Request_free(&made->requests[i]);
    }
}
#endif

/* Push and pull, without a copy of memory that is in one piece; when it returns the sections may be
 * changed. After DIEL_LATE they must not be, and the next call goes on with the same exchange. Where
 * all modules of the boundary are libraries that were compiled with MPI, this is MPI in C alone. */
static inline int diel_exchange(diel *d, diel_boundary *b, double timeout_s) {
#ifdef MPI_VERSION
    int status = b->lanes == DIEL_LANES_UNKNOWN ? diel_make_lanes_(d, b) : DIEL_DONE;
    if (status != DIEL_DONE || b->lanes == DIEL_EMPTY_LANES) return status;
    if (b->lanes > 0) return diel_run_lanes_(d, b, timeout_s);
#endif
    return d->calls->exchange(d, b->number, DIEL_EXCHANGE, timeout_s, NULL);
}

/* -- checkpoints, and what a copy reports ------------------------------------------------------- */

/* Add a value to the state of this rank, under a name. diel_checkpoint then saves the state, from
 * which this rank goes on if the run is started again; the next begins empty. */
static inline int diel_save(diel *d, const char *name, const diel_array *value) {
    return d->calls->save(d, name, value);
}

static inline int diel_checkpoint(diel *d) { return d->calls->checkpoint(d); }

/* Find a value of the state that was saved before; DIEL_ABSENT if there is none. */
static inline int diel_restore(diel *d, const char *name, diel_array *value) {
    return d->calls->restore(d, name, value);
}

/* Add to what the copy returns: a table of values by name, in the journal; of its rank 0. */
static inline int diel_result(diel *d, const char *name, const diel_array *value) {
    return d->calls->result(d, name, value);
}

static inline int diel_result_double(diel *d, const char *name, double x) {
    diel_array value = diel_number(DIEL_FLOAT64, &x);
    return d->calls->result(d, name, &value);
}

/* Progress, as displays show it; a total below 0 is unknown, and the text may be NULL. */
static inline int diel_progress(diel *d, double done, double total, const char *text) {
    return d->calls->progress(d, done, total, text);
}

/* Declare that the group can go on without this copy, if its rank dies. */
static inline int diel_allow_loss(diel *d) { return d->calls->allow_loss(d); }

/* -- when to stop ------------------------------------------------------------------------------ */

/* DIEL_STOP_NOW where the run or this copy is ending, DIEL_ENDS_SOON where signal_before is reached:
 * time to save the state; else DIEL_GO_ON, which is 0. */
static inline int diel_must_stop(diel *d) {
    int32_t what = DIEL_GO_ON;
    return d->calls->must_stop(d, &what) == DIEL_STOPPED ? DIEL_STOP_NOW : what;
}

/* Seconds until this copy has to have ended; below 0 where nothing ends it. */
static inline double diel_time_left(diel *d) {
    double left_s = -1;
    d->calls->time_left(d, &left_s);
    return left_s;
}

/* -- MPI --------------------------------------------------------------------------------------- */

/* The communicator of this copy, as Fortran has it; collective over the copy at the first call. */
static inline int diel_comm_handle(diel *d, int32_t *handle) {
    return d->calls->comm(d, DIEL_OF_COPY, handle);
}

/* That of all copies of the module; collective over them at the first call. */
static inline int diel_module_comm_handle(diel *d, int32_t *handle) {
    return d->calls->comm(d, DIEL_OF_MODULE, handle);
}

#ifdef MPI_VERSION
static inline MPI_Comm diel_comm(diel *d) {
    int32_t handle;
    if (diel_comm_handle(d, &handle) != DIEL_DONE) return MPI_COMM_NULL;
    return MPI_Comm_f2c((MPI_Fint)handle);
}

static inline MPI_Comm diel_module_comm(diel *d) {
    int32_t handle;
    if (diel_module_comm_handle(d, &handle) != DIEL_DONE) return MPI_COMM_NULL;
    return MPI_Comm_f2c((MPI_Fint)handle);
}
#endif

#ifdef __cplusplus
}
#endif

#endif
