/* diel_tuple.h: the tuple space of a diel run, for programs in C and C++ that the run has started.
 *
 * Copy this file (`diel tuple client c` prints where it lies) and include it; there is nothing to
 * link. POSIX, C99 or C++.
 *
 *     diel_tuple space;
 *     if (diel_tuple_open(&space) != DIEL_TUPLE_DONE) ...            // space.why says what is wrong
 *     while (diel_tuple_get(&space, "job", NULL, -1) == DIEL_TUPLE_DONE) {
 *         double x = atof(space.value);
 *         ...
 *         diel_tuple_put(&space, "area/3", "json", "9.5", 3, -1);
 *     }
 *     diel_tuple_close(&space);
 *
 * Every function returns one of
 *     DIEL_TUPLE_DONE      done
 *     DIEL_TUPLE_LATE      nothing matched, or there was no room, within the timeout
 *     DIEL_TUPLE_FAILED    anything else; `why` says what
 * A tag is written as for `diel tuple`: "name", "job/3", "job/" followed by a star for any, or a
 * JSON list. A form is NULL, "json", "bytes" or "npy"; NULL is text for a put and, for get and read,
 * what suits the value. A timeout is in seconds, and below 0 there is none.
 * A diel_tuple is for one thread; several may be open.
 */
#ifndef DIEL_TUPLE_H
#define DIEL_TUPLE_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { DIEL_TUPLE_DONE = 0, DIEL_TUPLE_LATE = 1, DIEL_TUPLE_FAILED = 2 };

typedef struct {
    char *value;   /* of the last get or read: `size` bytes, and a null character behind them */
    size_t size;
    char *tag;     /* of that tuple: a JSON list */
    char why[512]; /* what went wrong last */
    /* For the functions below only. */
    int socket;
    size_t begin, end;
    char buffer[4096];
} diel_tuple;

static inline void diel_tuple_close(diel_tuple *space) {
    if (space->socket >= 0) close(space->socket);
    free(space->value);
    free(space->tag);
    space->socket = -1;
    space->value = space->tag = NULL;
    space->size = 0;
}

/* End a connection that cannot be used any more. */
static inline int diel_tuple_fail_(diel_tuple *space, const char *why) {
    snprintf(space->why, sizeof space->why, "%s", why);
    if (space->socket >= 0) close(space->socket);
    space->socket = -1;
    return DIEL_TUPLE_FAILED;
}

/* Connect to the rank that has started this program, or its ancestor. */
static inline int diel_tuple_open(diel_tuple *space) {
    const char *path = getenv("DIEL_TUPLE_SOCKET");
    struct sockaddr_un address;
    memset(space, 0, sizeof *space);
    space->socket = -1;
    if (path == NULL || *path == 0)
        return diel_tuple_fail_(space, "DIEL_TUPLE_SOCKET is not set: no diel run has started this");
    memset(&address, 0, sizeof address);
    address.sun_family = AF_UNIX;
    if (strlen(path) >= sizeof address.sun_path)
        return diel_tuple_fail_(space, "DIEL_TUPLE_SOCKET is too long for a socket");
    strcpy(address.sun_path, path);
    space->socket = socket(AF_UNIX, SOCK_STREAM, 0);
    if (space->socket < 0 ||
        connect(space->socket, (struct sockaddr *)&address, sizeof address) != 0)
        return diel_tuple_fail_(space, "the run is over, or goes on on another node");
    return DIEL_TUPLE_DONE;
}

static inline int diel_tuple_send_(diel_tuple *space, const void *data, size_t size) {
    const char *next = (const char *)data;
    while (size > 0) {
        ssize_t sent = send(space->socket, next, size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return 0;
        next += sent;
        size -= (size_t)sent;
    }
    return 1;
}

/* Return the next byte, or -1 at the end. */
static inline int diel_tuple_byte_(diel_tuple *space) {
    if (space->begin == space->end) {
        ssize_t received;
        do
            received = recv(space->socket, space->buffer, sizeof space->buffer, 0);
        while (received < 0 && errno == EINTR);
        if (received <= 0) return -1;
        space->begin = 0;
        space->end = (size_t)received;
    }
    return (unsigned char)space->buffer[space->begin++];
}

/* Find the value of a key of a JSON table, at its top level; NULL if there is none. */
static inline const char *diel_tuple_find_(const char *json, const char *key) {
    size_t length = strlen(key);
    int depth = 0;
    for (; *json; json++) {
        if (*json == '{' || *json == '[') depth++;
        if (*json == '}' || *json == ']') depth--;
        if (*json == '"') {
            const char *begin = ++json;
            while (*json && *json != '"') json += (*json == '\\' && json[1]) ? 2 : 1;
            if (!*json) return NULL;
            if (depth == 1 && (size_t)(json - begin) == length && !memcmp(begin, key, length)) {
                const char *next = json + 1 + strspn(json + 1, " ");
                if (*next == ':') return next + 1 + strspn(next + 1, " ");
            }
        }
    }
    return NULL;
}

/* Copy a JSON string without its quotes; what is not ASCII is written as JSON has it. */
static inline void diel_tuple_unquote_(const char *json, char *text, size_t room) {
    size_t used = 0;
    for (json++; *json && *json != '"' && used + 1 < room; json++) {
        if (*json == '\\' && (json[1] == '"' || json[1] == '\\' || json[1] == '/')) json++;
        else if (*json == '\\' && json[1] == 'n') {
            text[used++] = '\n';
            json++;
            continue;
        }
        text[used++] = *json;
    }
    text[used] = 0;
}

/* Return a string as JSON, or NULL; to be freed. */
static inline char *diel_tuple_quote_(const char *text) {
    char *json = (char *)malloc(6 * strlen(text) + 3), *next = json;
    if (json == NULL) return NULL;
    *next++ = '"';
    for (; *text; text++) {
        if ((unsigned char)*text < 0x20) next += sprintf(next, "\\u%04x", (unsigned)*text);
        else {
            if (*text == '"' || *text == '\\') *next++ = '\\';
            *next++ = *text;
        }
    }
    *next++ = '"';
    *next = 0;
    return json;
}

static inline int diel_tuple_request_(diel_tuple *space, const char *operation, const char *tag,
                                      const char *form, const void *value, size_t size,
                                      double timeout_s) {
    const char *token = getenv("DIEL_TOKEN"), *gone = "the run has ended, or is ending";
    char *quoted, *head, timeout[48] = "null", form_word[24] = "null";
    const char *found, *status;
    size_t used = 0, room = 1024, left;
    int sent, byte;

    if (space->socket < 0) return diel_tuple_fail_(space, "there is no connection any more");
    quoted = diel_tuple_quote_(tag);
    head = (char *)malloc(room + (quoted ? strlen(quoted) : 0));
    if (quoted == NULL || head == NULL) {
        free(quoted);
        free(head);
        return diel_tuple_fail_(space, "there is no memory");
    }
    if (timeout_s >= 0 && timeout_s < 1e15) /* %g would write a comma in some places */
        snprintf(timeout, sizeof timeout, "%llu.%06u", (unsigned long long)timeout_s,
                 (unsigned)((timeout_s - (double)(unsigned long long)timeout_s) * 1e6));
    if (form == NULL && *operation == 'p') form = "text";
    if (form != NULL) snprintf(form_word, sizeof form_word, "\"%.20s\"", form);
    sent = snprintf(head, room + strlen(quoted),
                    "{\"token\": \"%.64s\", \"operation\": \"%s\", \"tag\": %s, \"form\": %s, "
                    "\"timeout_s\": %s, \"size\": %zu}\n",
                    token ? token : "", operation, quoted, form_word, timeout, size);
    free(quoted);
    sent = diel_tuple_send_(space, head, (size_t)sent) && diel_tuple_send_(space, value, size);
    for (;;) { /* the answer's head, whatever was sent: it may say why */
        byte = diel_tuple_byte_(space);
        if (byte < 0 || byte == '\n') break;
        if (used + 2 > room) {
            char *more = (char *)realloc(head, room *= 2);
            if (more == NULL) break;
            head = more;
        }
        head[used++] = (char)byte;
    }
    head[used] = 0;
    status = diel_tuple_find_(head, "status");
    found = diel_tuple_find_(head, "size");
    if (byte != '\n' || status == NULL || found == NULL) {
        free(head);
        return diel_tuple_fail_(space, gone);
    }
    free(space->value);
    free(space->tag);
    space->tag = NULL;
    space->size = (size_t)strtoull(found, NULL, 10);
    space->value = (char *)malloc(space->size + 1);
    if (space->value == NULL) {
        free(head);
        return diel_tuple_fail_(space, "there is no memory for the value; it was left there");
    }
    for (left = space->size; left > 0 && (byte = diel_tuple_byte_(space)) >= 0; left--)
        space->value[space->size - left] = (char)byte;
    space->value[space->size] = 0;
    if (left > 0) {
        free(head);
        return diel_tuple_fail_(space, gone);
    }
    if (!strncmp(status, "\"late\"", 6) || strncmp(status, "\"done\"", 6)) {
        int is_late = !strncmp(status, "\"late\"", 6);
        found = diel_tuple_find_(head, "why");
        if (is_late)
            snprintf(space->why, sizeof space->why, "%s in time",
                     *operation == 'p' ? "there was no room" : "nothing matched");
        else if (found != NULL)
            diel_tuple_unquote_(found, space->why, sizeof space->why);
        free(head);
        return is_late ? DIEL_TUPLE_LATE : DIEL_TUPLE_FAILED;
    }
    found = diel_tuple_find_(head, "tag");
    if (found != NULL) { /* a list of strings and numbers */
        const char *end = found;
        for (; *end && *end != ']'; end++)
            if (*end == '"')
                for (end++; *end && *end != '"'; end++)
                    if (*end == '\\' && end[1]) end++;
        memmove(head, found, (size_t)(end - found) + 1);
        head[end - found + 1] = 0;
        space->tag = head;
    } else
        free(head);
    if (*operation == 'g') { /* only now is the tuple gone: it is here */
        static const char received[] = "{\"received\": true, \"size\": 0}\n";
        diel_tuple_send_(space, received, sizeof received - 1);
    }
    return DIEL_TUPLE_DONE;
}

/* Put a value; when this returns, all ranks can see it. */
static inline int diel_tuple_put(diel_tuple *space, const char *tag, const char *form,
                                 const void *value, size_t size, double timeout_s) {
    return diel_tuple_request_(space, "put", tag, form, value, size, timeout_s);
}

/* Take the oldest tuple that matches: into `value`, `size` and `tag`. */
static inline int diel_tuple_get(diel_tuple *space, const char *tag, const char *form,
                                 double timeout_s) {
    return diel_tuple_request_(space, "get", tag, form, "", 0, timeout_s);
}

/* As diel_tuple_get; the tuple stays. */
static inline int diel_tuple_read(diel_tuple *space, const char *tag, const char *form,
                                  double timeout_s) {
    return diel_tuple_request_(space, "read", tag, form, "", 0, timeout_s);
}

#endif
