! diel.f90: modules of a diel run in Fortran: library = "./solver.so:run" in the workflow file.
!
!     integer(c_int) function run(d) bind(C)
!       use, intrinsic :: iso_c_binding
!       use diel
!       type(diel_copy), intent(inout) :: d
!       real(c_double) :: dt = 0.1, x(100, 20)
!
!       run = diel_option(d, "solver.dt", dt)      ! stays 0.1 where the file has no such option
!       run = diel_get(d, "start", x)              ! an array of shape [20, 100] in Python and C
!       if (run /= DIEL_DONE) return
!       ...
!       run = diel_put(d, "result", x)
!     end function
!
!     gfortran -shared -fPIC -o solver.so $(diel config --fortran) solver.f90
!
! The calls, codes and rules are those of diel.h, which says more of each: functions that return
! DIEL_DONE or another code, whose errors are kept and fail the copy. Values are numbers, arrays of
! up to 3 axes in one piece, of the types integer(int32, int64), real(real32, real64), complex of
! both and logical(c_bool), and text. Nothing is transposed: axes are in the opposite order in
! Python and C. A diel_array, which diel_value makes of a value, has any type and up to 8 axes.
! Copies, ranks and sections count from 0. Fortran 2018 (gfortran 10 or later), glibc.
module diel
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: int32, int64, real32, real64
  implicit none
  private

  ! What calls return. LATE and ABSENT are no errors.
  integer, parameter, public :: DIEL_DONE = 0, DIEL_LATE = 1, DIEL_FAILED = 2, DIEL_STOPPED = 3, &
    DIEL_ABSENT = 4
  ! What a value is: the type of the elements of an array, or text.
  integer, parameter, public :: DIEL_BOOL = 1, DIEL_INT8 = 2, DIEL_INT16 = 3, DIEL_INT32 = 4, &
    DIEL_INT64 = 5, DIEL_UINT8 = 6, DIEL_UINT16 = 7, DIEL_UINT32 = 8, DIEL_UINT64 = 9, &
    DIEL_FLOAT32 = 10, DIEL_FLOAT64 = 11, DIEL_COMPLEX64 = 12, DIEL_COMPLEX128 = 13, &
    DIEL_BYTES = 20, DIEL_TEXT = 21, DIEL_JSON = 22
  integer, parameter :: NOT_CONTIGUOUS = -1, NO_CODE = -2
  ! Levels of the log, flags of a put, what diel_must_stop returns, kinds of sections.
  integer, parameter, public :: DIEL_DEBUG = 10, DIEL_INFO = 20, DIEL_WARNING = 30, DIEL_ERROR = 40
  integer, parameter, public :: DIEL_STRIPED = 1, DIEL_VISIBLE = 2, DIEL_IF_ABSENT = 4
  integer, parameter, public :: DIEL_GO_ON = 0, DIEL_STOP_NOW = 1, DIEL_ENDS_SOON = 2
  integer, parameter, public :: DIEL_OWNED = 0, DIEL_READS = 1, DIEL_MOST_AXES = 8
  integer(c_int32_t), parameter :: TAKE = 0, READ = 1, ACKNOWLEDGE = 0, GIVE_BACK = 1, RENEW = 2, &
    SEND = 0, MOVE = 1, EXCHANGE = 0, PUSH = 1, PULL = 2, OF_COPY = 0, OF_MODULE = 1

  ! The structs of diel.h.
  type, bind(C), public :: diel_array
    type(c_ptr) :: data = c_null_ptr
    integer(c_int64_t) :: bytes = 0, shape(DIEL_MOST_AXES) = 0
    integer(c_int32_t) :: dtype = 0, ndim = 0
    integer(c_int64_t) :: owner = 0
  end type

  type, bind(C), public :: diel_address
    character(kind=c_char) :: module(256)
    integer(c_int32_t) :: copy, rank
  end type

  type, bind(C), public :: diel_boundary
    integer(c_int32_t) :: number, owned, read, lanes
    type(c_ptr) :: memory
  end type

  type, bind(C), public :: diel_copy
    integer(c_int32_t) :: abi, bytes
    type(c_ptr) :: calls, context
    integer(c_int32_t) :: copy, copies, rank, ranks, threads, depth, iteration(DIEL_MOST_AXES)
    type(c_ptr) :: module, group, run_dir, folder, element, session ! diel_string makes text of them
    character(kind=c_char) :: error(1024)
  end type

  type, bind(C) :: diel_calls
    integer(c_int64_t) :: count
    type(c_funptr) :: option, log, put, get, matched, release, claim_end, claim, count_tuples, &
      increment, flush, comm, clear_error, must_stop, time_left, send, recv, peers, boundary, &
      section, bind, whole, exchange, save, checkpoint, restore, result, progress, allow_loss, &
      lanes, lane_wait, lane_done, put_bytes, get_bytes
  end type

  ! The signatures of the calls.
  abstract interface
    integer(c_int32_t) function call_of_none(d) bind(C)
      import
      type(diel_copy), intent(inout) :: d
    end function
    integer(c_int32_t) function call_of_array(d, array) bind(C)
      import
      type(diel_copy), intent(inout) :: d
      type(diel_array), intent(inout) :: array
    end function
    integer(c_int32_t) function call_of_named(d, name, array) bind(C)
      import
      type(diel_copy), intent(inout) :: d
      character(kind=c_char), intent(in) :: name(*)
      type(diel_array), intent(inout) :: array
    end function
    integer(c_int32_t) function call_option(d, path, dtype, out, room, count) bind(C)
      import
      type(diel_copy), intent(inout) :: d
      character(kind=c_char), intent(in) :: path(*)
      integer(c_int32_t), value :: dtype
      type(c_ptr), value :: out
      integer(c_int64_t), value :: room
      integer(c_int64_t), intent(out) :: count
    end function
    integer(c_int32_t) function call_log(d, level, text) bind(C)
      import
      type(diel_copy), intent(inout) :: d
      integer(c_int32_t), value :: level
      character(kind=c_char), intent(in) :: text(*)
    end function
    integer(c_int32_t) function call_put(d, tag, array, flags, timeout_s) bind(C)
      import
      type(diel_copy), intent(inout) :: d
      character(kind=c_char), intent(in) :: tag(*)
      type(diel_array), intent(in) :: array
      integer(c_int32_t), value :: flags
      real(c_double), value :: timeout_s
    end function
    integer(c_int32_t) function call_get(d, how, tag, array, timeout_s) bind(C)
      import
      type(diel_copy), intent(inout) :: d
      integer(c_int32_t), value :: how
      character(kind=c_char), intent(in) :: tag(*)
      type(diel_array), intent(inout) :: array
      real(c_double), value :: timeout_s
    end function
    integer(c_int32_t) function call_matched(d, tag, room) bind(C)
      import
      type(diel_copy), intent(inout) :: d
      character(kind=c_char), intent(out) :: tag(*)
      integer(c_int64_t), value :: room
    end function
    integer(c_int32_t) function call_claim_end(d, how, claim, lease_s) bind(C)
      import
      type(diel_copy), intent(inout) :: d
      integer(c_int32_t), value :: how
      integer(c_int64_t), value :: claim
      real(c_double), value :: lease_s
    end function
    integer(c_int32_t) function call_claim(d, tag, array, claim, timeout_s, lease_s) bind(C)
      import
      type(diel_copy), intent(inout) :: d
      character(kind=c_char), intent(in) :: tag(*)
      type(diel_array), intent(inout) :: array
      integer(c_int64_t), intent(out) :: claim
      real(c_double), value :: timeout_s, lease_s
    end function
    integer(c_int32_t) function call_count(d, tag, count) bind(C)
      import
      type(diel_copy), intent(inout) :: d
      character(kind=c_char), intent(in) :: tag(*)
      integer(c_int64_t), intent(out) :: count
    end function
    integer(c_int32_t) function call_increment(d, tag, by, sum) bind(C)
      import
      type(diel_copy), intent(inout) :: d
      character(kind=c_char), intent(in) :: tag(*)
      real(c_double), value :: by
      real(c_double), intent(out) :: sum
    end function
    integer(c_int32_t) function call_comm(d, whose, handle) bind(C)
      import
      type(diel_copy), intent(inout) :: d
      integer(c_int32_t), value :: whose
      integer(c_int32_t), intent(out) :: handle
    end function
    integer(c_int32_t) function call_must_stop(d, what) bind(C)
      import
      type(diel_copy), intent(inout) :: d
      integer(c_int32_t), intent(inout) :: what
    end function
    integer(c_int32_t) function call_time_left(d, seconds) bind(C)
      import
      type(diel_copy), intent(inout) :: d
      real(c_double), intent(inout) :: seconds
    end function
    integer(c_int32_t) function call_send(d, how, module, copy, rank, tag, array, timeout_s) bind(C)
      import
      type(diel_copy), intent(inout) :: d
      integer(c_int32_t), value :: how, copy, rank
      character(kind=c_char), intent(in) :: module(*)
      type(c_ptr), value :: tag
      type(diel_array), intent(in) :: array
      real(c_double), value :: timeout_s
    end function
    integer(c_int32_t) function call_recv(d, module, copy, rank, tag, array, source, timeout_s) &
        bind(C)
      import
      type(diel_copy), intent(inout) :: d
      type(c_ptr), value :: module, tag
      integer(c_int32_t), value :: copy, rank
      type(diel_array), intent(inout) :: array
      type(diel_address), intent(out) :: source
      real(c_double), value :: timeout_s
    end function
    integer(c_int32_t) function call_peers(d, module, copies, ranks) bind(C)
      import
      type(diel_copy), intent(inout) :: d
      character(kind=c_char), intent(in) :: module(*)
      integer(c_int32_t), intent(out) :: copies, ranks
    end function
    integer(c_int32_t) function call_boundary(d, name, number, owned, read) bind(C)
      import
      type(diel_copy), intent(inout) :: d
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int32_t), intent(out) :: number, owned, read
    end function
    integer(c_int32_t) function call_section(d, boundary, kind, index, array, start) bind(C)
      import
      type(diel_copy), intent(inout) :: d
      integer(c_int32_t), value :: boundary, kind, index
      type(diel_array), intent(inout) :: array
      integer(c_int64_t), intent(out) :: start(*)
    end function
    integer(c_int32_t) function call_bind(d, boundary, kind, index, data, strides) bind(C)
      import
      type(diel_copy), intent(inout) :: d
      integer(c_int32_t), value :: boundary, kind, index
      type(c_ptr), value :: data
      integer(c_int64_t), intent(in) :: strides(*)
    end function
    integer(c_int32_t) function call_whole(d, boundary, array) bind(C)
      import
      type(diel_copy), intent(inout) :: d
      integer(c_int32_t), value :: boundary
      type(diel_array), intent(inout) :: array
    end function
    integer(c_int32_t) function call_exchange(d, boundary, how, timeout_s, step) bind(C)
      import
      type(diel_copy), intent(inout) :: d
      integer(c_int32_t), value :: boundary, how
      real(c_double), value :: timeout_s
      integer(c_int64_t), intent(out) :: step
    end function
    integer(c_int32_t) function call_progress(d, done, total, text) bind(C)
      import
      type(diel_copy), intent(inout) :: d
      real(c_double), value :: done, total
      character(kind=c_char), intent(in) :: text(*)
    end function
  end interface

  ! What the loader reads before it calls anything: the version of diel.h, and sizes in bytes.
  integer(c_int32_t), bind(C, name="diel_header_"), protected, public :: header(4) = &
    int([1, storage_size(diel_copy(0, 0, c_null_ptr, c_null_ptr, 0, 0, 0, 0, 0, 0, 0, c_null_ptr, &
    c_null_ptr, c_null_ptr, c_null_ptr, c_null_ptr, c_null_ptr, " ")) / 8, 8 * (1 + 34), &
    storage_size(diel_array()) / 8], c_int32_t)

  ! The C stack of a crash, for the rank's crash file: see diel.h.
  type, bind(C) :: crash_struct
    integer(c_int32_t) :: descriptor, is_running, count, signals(5)
    integer(c_int8_t) :: before(256, 5)
  end type
  type(crash_struct), bind(C, name="diel_crash_"), target, public :: crash

  interface
    integer(c_int) function backtrace(frames, most) bind(C)
      import
      type(c_ptr), intent(out) :: frames(*)
      integer(c_int), value :: most
    end function
    subroutine backtrace_symbols_fd(frames, count, descriptor) bind(C)
      import
      type(c_ptr), intent(in) :: frames(*)
      integer(c_int), value :: count, descriptor
    end subroutine
    integer(c_size_t) function c_write(descriptor, text, length) bind(C, name="write")
      import
      integer(c_int), value :: descriptor
      character(kind=c_char), intent(in) :: text(*)
      integer(c_size_t), value :: length
    end function
    integer(c_int) function c_raise(number) bind(C, name="raise")
      import
      integer(c_int), value :: number
    end function
    integer(c_int) function c_sigaction(number, new, old) bind(C, name="sigaction")
      import
      integer(c_int), value :: number
      integer(c_int8_t), intent(in) :: new(*)
      type(c_ptr), value :: old
    end function
    integer(c_size_t) function c_strlen(text) bind(C, name="strlen")
      import
      type(c_ptr), value :: text
    end function
  end interface

  ! The calls of the table as procedures; a process has one table.
  type :: procedures
    type(c_ptr) :: table = c_null_ptr
    procedure(call_option), nopass, pointer :: option
    procedure(call_log), nopass, pointer :: log
    procedure(call_put), nopass, pointer :: put
    procedure(call_get), nopass, pointer :: get
    procedure(call_matched), nopass, pointer :: matched
    procedure(call_of_array), nopass, pointer :: release
    procedure(call_claim_end), nopass, pointer :: claim_end
    procedure(call_claim), nopass, pointer :: claim
    procedure(call_count), nopass, pointer :: count_tuples
    procedure(call_increment), nopass, pointer :: increment
    procedure(call_of_none), nopass, pointer :: flush, clear_error, checkpoint, allow_loss
    procedure(call_comm), nopass, pointer :: comm
    procedure(call_must_stop), nopass, pointer :: must_stop
    procedure(call_time_left), nopass, pointer :: time_left
    procedure(call_send), nopass, pointer :: send
    procedure(call_recv), nopass, pointer :: recv
    procedure(call_peers), nopass, pointer :: peers
    procedure(call_boundary), nopass, pointer :: boundary
    procedure(call_section), nopass, pointer :: section
    procedure(call_bind), nopass, pointer :: bind
    procedure(call_whole), nopass, pointer :: whole
    procedure(call_exchange), nopass, pointer :: exchange
    procedure(call_of_named), nopass, pointer :: save, restore, result
    procedure(call_progress), nopass, pointer :: progress
  end type
  type(procedures), save :: calls

  interface diel_option
    procedure option_number, option_int32, option_int64, option_logical, option_text, &
      option_numbers, option_integers
  end interface

  public :: diel_crashed, diel_exited
  public :: diel_error_text, diel_clear_error, diel_has_option, diel_option, diel_option_json, &
    diel_log, diel_string
  public :: diel_value, diel_shape, diel_text_of, diel_free
  public :: diel_put, diel_put_value, diel_get, diel_get_value, diel_read, diel_read_value, &
    diel_matched_tag, diel_claim_value, diel_acknowledge, diel_give_back, diel_renew, diel_count, &
    diel_increment, diel_flush
  public :: diel_peers, diel_send, diel_send_value, diel_move, diel_recv, diel_recv_value, &
    diel_module_of
  public :: diel_boundary_open, diel_section, diel_bind, diel_boundary_array, diel_push, &
    diel_pull, diel_exchange
  public :: diel_save, diel_save_value, diel_checkpoint, diel_restore, diel_restore_value, &
    diel_result, diel_result_value, diel_progress, diel_allow_loss
  public :: diel_must_stop, diel_time_left, diel_comm_handle, diel_module_comm_handle

contains

  ! -- crashes -----------------------------------------------------------------------------------

  subroutine diel_crashed(number) bind(C, name="diel_crashed_")
    integer(c_int), value :: number
    character(*), parameter :: TITLE = "C stack, innermost first:" // new_line("a")
    type(c_ptr) :: frames(64)
    integer(c_int) :: i, unused
    unused = int(c_write(crash%descriptor, TITLE, len(TITLE, c_size_t)))
    call backtrace_symbols_fd(frames, backtrace(frames, 64), crash%descriptor)
    unused = int(c_write(crash%descriptor, new_line("a"), 1_c_size_t))
    do i = 1, crash%count
      if (crash%signals(i) == number) unused = c_sigaction(number, crash%before(:, i), c_null_ptr)
    end do
    unused = c_raise(number)
  end subroutine

  subroutine diel_exited(status, unused) bind(C, name="diel_exited_")
    integer(c_int), value :: status
    type(c_ptr), value :: unused
    character(*), parameter :: TITLE = "C stack, innermost first:" // new_line("a")
    character(64) :: what
    type(c_ptr) :: frames(64)
    integer(c_size_t) :: written
    if (crash%is_running == 0 .or. c_associated(unused)) return
    write (what, "(a, i0, 2a)") "exit(", status, ") in a library", new_line("a")
    written = c_write(crash%descriptor, what, len_trim(what, c_size_t))
    written = c_write(crash%descriptor, TITLE, len(TITLE, c_size_t))
    call backtrace_symbols_fd(frames, backtrace(frames, 64), crash%descriptor)
    written = c_write(crash%descriptor, new_line("a"), 1_c_size_t)
  end subroutine

  ! -- text, and the table of calls --------------------------------------------------------------

  subroutine find_calls(d)
    type(diel_copy), intent(in) :: d
    type(diel_calls), pointer :: table
    if (c_associated(d%calls, calls%table)) return
    call c_f_pointer(d%calls, table)
    call c_f_procpointer(table%option, calls%option)
    call c_f_procpointer(table%log, calls%log)
    call c_f_procpointer(table%put, calls%put)
    call c_f_procpointer(table%get, calls%get)
    call c_f_procpointer(table%matched, calls%matched)
    call c_f_procpointer(table%release, calls%release)
    call c_f_procpointer(table%claim_end, calls%claim_end)
    call c_f_procpointer(table%claim, calls%claim)
    call c_f_procpointer(table%count_tuples, calls%count_tuples)
    call c_f_procpointer(table%increment, calls%increment)
    call c_f_procpointer(table%flush, calls%flush)
    call c_f_procpointer(table%comm, calls%comm)
    call c_f_procpointer(table%clear_error, calls%clear_error)
    call c_f_procpointer(table%must_stop, calls%must_stop)
    call c_f_procpointer(table%time_left, calls%time_left)
    call c_f_procpointer(table%send, calls%send)
    call c_f_procpointer(table%recv, calls%recv)
    call c_f_procpointer(table%peers, calls%peers)
    call c_f_procpointer(table%boundary, calls%boundary)
    call c_f_procpointer(table%section, calls%section)
    call c_f_procpointer(table%bind, calls%bind)
    call c_f_procpointer(table%whole, calls%whole)
    call c_f_procpointer(table%exchange, calls%exchange)
    call c_f_procpointer(table%save, calls%save)
    call c_f_procpointer(table%checkpoint, calls%checkpoint)
    call c_f_procpointer(table%restore, calls%restore)
    call c_f_procpointer(table%result, calls%result)
    call c_f_procpointer(table%progress, calls%progress)
    call c_f_procpointer(table%allow_loss, calls%allow_loss)
    calls%table = d%calls
  end subroutine

  ! Text as C has it; blanks at the end of a name or tag mean nothing.
  pure function c_text(text)
    character(*), intent(in) :: text
    character(:), allocatable :: c_text
    c_text = trim(text) // c_null_char
  end function

  ! The same in memory that has an address; of length 0 where there is none.
  subroutine optional_text(text, memory, address)
    character(*), intent(in), optional :: text
    character(kind=c_char), allocatable, target, intent(out) :: memory(:)
    type(c_ptr), intent(out) :: address
    integer :: i
    address = c_null_ptr
    if (.not. present(text)) return
    allocate (memory(len_trim(text) + 1))
    do i = 1, len_trim(text)
      memory(i) = text(i:i)
    end do
    memory(size(memory)) = c_null_char
    address = c_loc(memory)
  end subroutine

  pure function until_null(text) result(found)
    character(kind=c_char), intent(in) :: text(:)
    character(:), allocatable :: found
    integer :: i, length
    length = findloc(text, c_null_char, 1) - 1
    if (length < 0) length = size(text)
    allocate (character(length) :: found)
    do i = 1, length
      found(i:i) = text(i)
    end do
  end function

  ! The text of d%module, d%group, d%run_dir, d%folder, d%element or d%session.
  function diel_string(text) result(found)
    type(c_ptr), intent(in) :: text
    character(:), allocatable :: found
    character(kind=c_char), pointer :: memory(:)
    call c_f_pointer(text, memory, [c_strlen(text)])
    found = until_null(memory)
  end function

  pure function diel_error_text(d) result(text)
    type(diel_copy), intent(in) :: d
    character(:), allocatable :: text
    text = until_null(d%error)
  end function

  ! Say that the errors so far were dealt with, so that they do not fail the copy.
  integer function diel_clear_error(d) result(status)
    type(diel_copy), intent(inout) :: d
    call find_calls(d)
    status = calls%clear_error(d)
  end function

  pure real(c_double) function timeout_of(timeout)
    real(real64), intent(in), optional :: timeout
    timeout_of = -1
    if (present(timeout)) timeout_of = timeout
  end function

  ! -- options, and the log ----------------------------------------------------------------------

  ! The path of an option has dots between keys and indices: "solver.dt", "stages.0.name".
  logical function diel_has_option(d, path)
    type(diel_copy), intent(inout) :: d
    character(*), intent(in) :: path
    integer(c_int64_t) :: count
    call find_calls(d)
    diel_has_option = calls%option(d, c_text(path), 0, c_null_ptr, 0_int64, count) == DIEL_DONE
  end function

  integer function option_number(d, path, x) result(status)
    type(diel_copy), intent(inout) :: d
    character(*), intent(in) :: path
    real(real64), intent(inout), target :: x
    integer(c_int64_t) :: count
    call find_calls(d)
    status = calls%option(d, c_text(path), DIEL_FLOAT64, c_loc(x), -1_int64, count)
  end function

  integer function option_int64(d, path, x) result(status)
    type(diel_copy), intent(inout) :: d
    character(*), intent(in) :: path
    integer(int64), intent(inout), target :: x
    integer(c_int64_t) :: count
    call find_calls(d)
    status = calls%option(d, c_text(path), DIEL_INT64, c_loc(x), -1_int64, count)
  end function

  integer function option_int32(d, path, x) result(status)
    type(diel_copy), intent(inout) :: d
    character(*), intent(in) :: path
    integer(int32), intent(inout), target :: x
    integer(c_int64_t) :: count
    call find_calls(d)
    status = calls%option(d, c_text(path), DIEL_INT32, c_loc(x), -1_int64, count)
  end function

  integer function option_logical(d, path, x) result(status)
    type(diel_copy), intent(inout) :: d
    character(*), intent(in) :: path
    logical, intent(inout) :: x
    integer(c_int8_t), target :: is_true
    integer(c_int64_t) :: count
    call find_calls(d)
    status = calls%option(d, c_text(path), DIEL_BOOL, c_loc(is_true), -1_int64, count)
    if (status == DIEL_DONE) x = is_true /= 0
  end function

  ! Text, with blanks behind it.
  integer function option_text(d, path, x) result(status)
    type(diel_copy), intent(inout) :: d
    character(*), intent(in) :: path
    character(*), intent(inout) :: x
    status = text_option(d, path, DIEL_TEXT, x)
  end function

  ! Any option, also a table, as JSON text.
  integer function diel_option_json(d, path, x) result(status)
    type(diel_copy), intent(inout) :: d
    character(*), intent(in) :: path
    character(*), intent(inout) :: x
    status = text_option(d, path, DIEL_JSON, x)
  end function

  integer function text_option(d, path, dtype, x) result(status)
    type(diel_copy), intent(inout) :: d
    character(*), intent(in) :: path
    integer, intent(in) :: dtype
    character(*), intent(inout) :: x
    character(kind=c_char), target :: text(len(x) + 1)
    integer(c_int64_t) :: count
    call find_calls(d)
    status = calls%option(d, c_text(path), dtype, c_loc(text), size(text, kind=int64), count)
    if (status == DIEL_DONE) x = until_null(text)
  end function

  ! A list of numbers, of which `count` says how many there are: it fails if x has room for fewer.
  integer function option_numbers(d, path, x, count) result(status)
    type(diel_copy), intent(inout) :: d
    character(*), intent(in) :: path
    real(real64), intent(inout), target, contiguous :: x(:)
    integer(int64), intent(out) :: count
    call find_calls(d)
    status = calls%option(d, c_text(path), DIEL_FLOAT64, c_loc(x), size(x, kind=int64), count)
  end function

  integer function option_integers(d, path, x, count) result(status)
    type(diel_copy), intent(inout) :: d
    character(*), intent(in) :: path
    integer(int64), intent(inout), target, contiguous :: x(:)
    integer(int64), intent(out) :: count
    call find_calls(d)
    status = calls%option(d, c_text(path), DIEL_INT64, c_loc(x), size(x, kind=int64), count)
  end function

  integer function diel_log(d, level, text) result(status)
    type(diel_copy), intent(inout) :: d
    integer, intent(in) :: level
    character(*), intent(in) :: text
    call find_calls(d)
    status = calls%log(d, level, c_text(text))
  end function

  ! -- values ------------------------------------------------------------------------------------

  ! What a number, an array or a text is; its data is x itself, which needs the attribute target.
  function diel_value(x) result(value)
    class(*), intent(in), target :: x(..)
    type(diel_array) :: value
    integer(c_int64_t) :: strides(DIEL_MOST_AXES)
    call describe(x, value, strides)
  end function

  ! The same, and how many elements are from one index of an axis to the next. An array that is not
  ! in one piece gets no type, so that a call with it fails.
  subroutine describe(x, value, strides)
    class(*), intent(in), target :: x(..)
    type(diel_array), intent(out) :: value
    integer(c_int64_t), intent(out) :: strides(DIEL_MOST_AXES)
    integer(int64) :: item, expected
    integer :: axis, axes
    strides = 1
    item = storage_size(x) / 8
    axes = rank(x)
    value%ndim = axes
    value%shape(:axes) = shape(x, int64)
    select rank (x)
    rank (0)
      value%dtype = dtype_0(x)
      if (value%dtype == DIEL_TEXT) item = length_of(x)
      value%data = address_of(x)
    rank (1)
      value%dtype = dtype_1(x)
      if (size(x) > 0) value%data = address_of(x(1))
      if (size(x) > 1) strides(1) = between(x(1), x(2)) / item
    rank (2)
      value%dtype = dtype_2(x)
      if (size(x) > 0) then
        value%data = address_of(x(1, 1))
        if (size(x, 1) > 1) strides(1) = between(x(1, 1), x(2, 1)) / item
        if (size(x, 2) > 1) strides(2) = between(x(1, 1), x(1, 2)) / item
      end if
    rank (3)
      value%dtype = dtype_3(x)
      if (size(x) > 0) then
        value%data = address_of(x(1, 1, 1))
        if (size(x, 1) > 1) strides(1) = between(x(1, 1, 1), x(2, 1, 1)) / item
        if (size(x, 2) > 1) strides(2) = between(x(1, 1, 1), x(1, 2, 1)) / item
        if (size(x, 3) > 1) strides(3) = between(x(1, 1, 1), x(1, 1, 2)) / item
      end if
    rank default
      value%dtype = NO_CODE
    end select
    expected = 1
    do axis = 1, axes
      if (value%shape(axis) > 1 .and. strides(axis) /= expected) value%dtype = NOT_CONTIGUOUS
      expected = expected * value%shape(axis)
    end do
    value%bytes = expected * item
    value%shape(:axes) = value%shape(axes:1:-1)
    strides(:axes) = strides(axes:1:-1)
    if (value%dtype == DIEL_TEXT) then
      value%ndim = 1
      value%shape(1) = item
    end if
  end subroutine

  type(c_ptr) function address_of(x)
    type(*), intent(in), target :: x
    address_of = c_loc(x)
  end function

  integer(int64) function between(first, second)
    type(*), intent(in), target :: first, second
    between = transfer(c_loc(second), 0_c_intptr_t) - transfer(c_loc(first), 0_c_intptr_t)
  end function

  pure integer function dtype_0(x) result(code)
    class(*), intent(in) :: x
    code = NO_CODE
    select type (x)
    type is (integer(int32)); code = DIEL_INT32
    type is (integer(int64)); code = DIEL_INT64
    type is (real(real32)); code = DIEL_FLOAT32
    type is (real(real64)); code = DIEL_FLOAT64
    type is (complex(real32)); code = DIEL_COMPLEX64
    type is (complex(real64)); code = DIEL_COMPLEX128
    type is (logical(c_bool)); code = DIEL_BOOL
    type is (character(*)); code = DIEL_TEXT
    end select
  end function

  pure integer function dtype_1(x) result(code)
    class(*), intent(in) :: x(:)
    code = NO_CODE
    select type (x)
    type is (integer(int32)); code = DIEL_INT32
    type is (integer(int64)); code = DIEL_INT64
    type is (real(real32)); code = DIEL_FLOAT32
    type is (real(real64)); code = DIEL_FLOAT64
    type is (complex(real32)); code = DIEL_COMPLEX64
    type is (complex(real64)); code = DIEL_COMPLEX128
    type is (logical(c_bool)); code = DIEL_BOOL
    end select
  end function

  pure integer function dtype_2(x) result(code)
    class(*), intent(in) :: x(:,:)
    code = NO_CODE
    select type (x)
    type is (integer(int32)); code = DIEL_INT32
    type is (integer(int64)); code = DIEL_INT64
    type is (real(real32)); code = DIEL_FLOAT32
    type is (real(real64)); code = DIEL_FLOAT64
    type is (complex(real32)); code = DIEL_COMPLEX64
    type is (complex(real64)); code = DIEL_COMPLEX128
    type is (logical(c_bool)); code = DIEL_BOOL
    end select
  end function

  pure integer function dtype_3(x) result(code)
    class(*), intent(in) :: x(:,:,:)
    code = NO_CODE
    select type (x)
    type is (integer(int32)); code = DIEL_INT32
    type is (integer(int64)); code = DIEL_INT64
    type is (real(real32)); code = DIEL_FLOAT32
    type is (real(real64)); code = DIEL_FLOAT64
    type is (complex(real32)); code = DIEL_COMPLEX64
    type is (complex(real64)); code = DIEL_COMPLEX128
    type is (logical(c_bool)); code = DIEL_BOOL
    end select
  end function

  ! The shape of a value as Fortran has it: call c_f_pointer(value%data, x, diel_shape(value)).
  pure function diel_shape(value) result(found)
    type(diel_array), intent(in) :: value
    integer(int64) :: found(value%ndim)
    found = value%shape(value%ndim:1:-1)
  end function

  ! What a value that is text, JSON or bytes holds.
  function diel_text_of(value) result(text)
    type(diel_array), intent(in) :: value
    character(:), allocatable :: text
    character(kind=c_char), pointer :: memory(:)
    integer :: i
    allocate (character(value%bytes) :: text)
    call c_f_pointer(value%data, memory, [value%bytes])
    do i = 1, len(text)
      text(i:i) = memory(i)
    end do
  end function

  ! The length of a text; storage_size says that of one character in gfortran.
  pure integer(int64) function length_of(x)
    class(*), intent(in) :: x
    length_of = 0
    select type (x)
    type is (character(*)); length_of = len(x, int64)
    end select
  end function

  ! Blanks behind a text that is shorter than the character variable that it was written to.
  subroutine pad(x, value)
    class(*), intent(inout), target :: x(..)
    type(diel_array), intent(in) :: value
    select rank (x)
    rank (0)
      select type (x)
      type is (character(*))
        if (value%bytes < len(x)) x(value%bytes + 1:) = " "
      end select
    end select
  end subroutine

  ! Give memory back that diel owns; nothing is done for other memory.
  integer function diel_free(d, value) result(status)
    type(diel_copy), intent(inout) :: d
    type(diel_array), intent(inout) :: value
    call find_calls(d)
    status = DIEL_DONE
    if (value%owner /= 0) status = calls%release(d, value)
  end function

  ! -- the tuple space ---------------------------------------------------------------------------

  ! Put a value, with any of DIEL_STRIPED, DIEL_VISIBLE and DIEL_IF_ABSENT.
  integer function diel_put(d, tag, x, flags, timeout) result(status)
    type(diel_copy), intent(inout) :: d
    character(*), intent(in) :: tag
    class(*), intent(in), target :: x(..)
    integer, intent(in), optional :: flags
    real(real64), intent(in), optional :: timeout
    status = diel_put_value(d, tag, diel_value(x), flags, timeout)
  end function

  integer function diel_put_value(d, tag, value, flags, timeout) result(status)
    type(diel_copy), intent(inout) :: d
    character(*), intent(in) :: tag
    type(diel_array), intent(in) :: value
    integer, intent(in), optional :: flags
    real(real64), intent(in), optional :: timeout
    integer(c_int32_t) :: bits
    bits = 0
    if (present(flags)) bits = flags
    call find_calls(d)
    status = calls%put(d, c_text(tag), value, bits, timeout_of(timeout))
  end function

  ! Take the oldest tuple that matches: of the type and shape of x, or no longer than the text x.
  integer function diel_get(d, tag, x, timeout) result(status)
    type(diel_copy), intent(inout) :: d
    character(*), intent(in) :: tag
    class(*), intent(inout), target :: x(..)
    real(real64), intent(in), optional :: timeout
    type(diel_array) :: value
    value = diel_value(x)
    status = diel_get_value(d, tag, value, timeout)
    if (status == DIEL_DONE) call pad(x, value)
  end function

  ! Without memory, which is c_null_ptr at first, the value gets some that diel owns.
  integer function diel_get_value(d, tag, value, timeout) result(status)
    type(diel_copy), intent(inout) :: d
    character(*), intent(in) :: tag
    type(diel_array), intent(inout) :: value
    real(real64), intent(in), optional :: timeout
    call find_calls(d)
    status = calls%get(d, TAKE, c_text(tag), value, timeout_of(timeout))
  end function

  ! As diel_get; the tuple stays.
  integer function diel_read(d, tag, x, timeout) result(status)
    type(diel_copy), intent(inout) :: d
    character(*), intent(in) :: tag
    class(*), intent(inout), target :: x(..)
    real(real64), intent(in), optional :: timeout
    type(diel_array) :: value
    value = diel_value(x)
    status = diel_read_value(d, tag, value, timeout)
    if (status == DIEL_DONE) call pad(x, value)
  end function

  integer function diel_read_value(d, tag, value, timeout) result(status)
    type(diel_copy), intent(inout) :: d
    character(*), intent(in) :: tag
    type(diel_array), intent(inout) :: value
    real(real64), intent(in), optional :: timeout
    call find_calls(d)
    status = calls%get(d, READ, c_text(tag), value, timeout_of(timeout))
  end function

  ! The tag of the last tuple that a get, read or claim with a star has matched.
  function diel_matched_tag(d) result(tag)
    type(diel_copy), intent(inout) :: d
    character(:), allocatable :: tag
    character(kind=c_char) :: text(4096)
    call find_calls(d)
    text(1) = c_null_char
    if (calls%matched(d, text, size(text, kind=int64)) /= DIEL_DONE) text(1) = c_null_char
    tag = until_null(text)
  end function

  ! Take a tuple until the work on it is done: it is given back if this rank fails or dies. Without
  ! a lease, in seconds, the claim has no end.
  integer function diel_claim_value(d, tag, value, claim, timeout, lease) result(status)
    type(diel_copy), intent(inout) :: d
    character(*), intent(in) :: tag
    type(diel_array), intent(inout) :: value
    integer(int64), intent(out) :: claim
    real(real64), intent(in), optional :: timeout, lease
    real(c_double) :: lease_s
    lease_s = 0
    if (present(lease)) lease_s = lease
    call find_calls(d)
    status = calls%claim(d, c_text(tag), value, claim, timeout_of(timeout), lease_s)
  end function

  integer function diel_acknowledge(d, claim) result(status)
    type(diel_copy), intent(inout) :: d
    integer(int64), intent(in) :: claim
    call find_calls(d)
    status = calls%claim_end(d, ACKNOWLEDGE, claim, 0.0_c_double)
  end function

  integer function diel_give_back(d, claim) result(status)
    type(diel_copy), intent(inout) :: d
    integer(int64), intent(in) :: claim
    call find_calls(d)
    status = calls%claim_end(d, GIVE_BACK, claim, 0.0_c_double)
  end function

  integer function diel_renew(d, claim, lease) result(status)
    type(diel_copy), intent(inout) :: d
    integer(int64), intent(in) :: claim
    real(real64), intent(in) :: lease
    call find_calls(d)
    status = calls%claim_end(d, RENEW, claim, lease)
  end function

  ! How many tuples match, claimed ones excluded.
  integer function diel_count(d, tag, count) result(status)
    type(diel_copy), intent(inout) :: d
    character(*), intent(in) :: tag
    integer(int64), intent(out) :: count
    call find_calls(d)
    status = calls%count_tuples(d, c_text(tag), count)
  end function

  ! Add to the number in a tuple, atomically. Whole numbers stay whole.
  integer function diel_increment(d, tag, by, sum) result(status)
    type(diel_copy), intent(inout) :: d
    character(*), intent(in) :: tag
    real(real64), intent(in) :: by
    real(real64), intent(out), optional :: sum
    real(c_double) :: found
    call find_calls(d)
    status = calls%increment(d, c_text(tag), by, found)
    if (present(sum)) sum = found
  end function

  ! Wait until all tuples that this rank has put are in the space.
  integer function diel_flush(d) result(status)
    type(diel_copy), intent(inout) :: d
    call find_calls(d)
    status = calls%flush(d)
  end function

  ! -- messages between ranks of a group ---------------------------------------------------------

  ! How many copies a module of the group has, and how many ranks all of them have together.
  integer function diel_peers(d, module, copies, ranks) result(status)
    type(diel_copy), intent(inout) :: d
    character(*), intent(in) :: module
    integer(int32), intent(out) :: copies, ranks
    call find_calls(d)
    status = calls%peers(d, c_text(module), copies, ranks)
  end function

  ! Send a value to a rank of a copy; never waits, and the value may be changed at once. Only a
  ! receive with the same tag, or also without one, receives it.
  integer function diel_send(d, module, copy, rank, x, tag) result(status)
    type(diel_copy), intent(inout) :: d
    character(*), intent(in) :: module
    integer, intent(in) :: copy, rank
    class(*), intent(in), target :: x(..)
    character(*), intent(in), optional :: tag
    status = diel_send_value(d, module, copy, rank, diel_value(x), tag)
  end function

  integer function diel_send_value(d, module, copy, rank, value, tag) result(status)
    type(diel_copy), intent(inout) :: d
    character(*), intent(in) :: module
    integer, intent(in) :: copy, rank
    type(diel_array), intent(in) :: value
    character(*), intent(in), optional :: tag
    status = send_or_move(d, SEND, module, copy, rank, value, tag)
  end function

  ! Send a value without a copy of it, and wait until it has been received.
  integer function diel_move(d, module, copy, rank, x, tag, timeout) result(status)
    type(diel_copy), intent(inout) :: d
    character(*), intent(in) :: module
    integer, intent(in) :: copy, rank
    class(*), intent(in), target :: x(..)
    character(*), intent(in), optional :: tag
    real(real64), intent(in), optional :: timeout
    status = send_or_move(d, MOVE, module, copy, rank, diel_value(x), tag, timeout)
  end function

  integer function send_or_move(d, how, module, copy, rank, value, tag, timeout) result(status)
    type(diel_copy), intent(inout) :: d
    integer(c_int32_t), intent(in) :: how
    character(*), intent(in) :: module
    integer, intent(in) :: copy, rank
    type(diel_array), intent(in) :: value
    character(*), intent(in), optional :: tag
    real(real64), intent(in), optional :: timeout
    character(kind=c_char), allocatable, target :: memory(:)
    type(c_ptr) :: name
    call find_calls(d)
    call optional_text(tag, memory, name)
    status = calls%send(d, how, c_text(module), copy, rank, name, value, timeout_of(timeout))
  end function

  ! Receive a value, as diel_get does. Without a module, from any rank; `source` says which it was.
  integer function diel_recv(d, x, module, copy, rank, tag, source, timeout) result(status)
    type(diel_copy), intent(inout) :: d
    class(*), intent(inout), target :: x(..)
    character(*), intent(in), optional :: module, tag
    integer, intent(in), optional :: copy, rank
    type(diel_address), intent(out), optional :: source
    real(real64), intent(in), optional :: timeout
    type(diel_array) :: value
    value = diel_value(x)
    status = diel_recv_value(d, value, module, copy, rank, tag, source, timeout)
    if (status == DIEL_DONE) call pad(x, value)
  end function

  integer function diel_recv_value(d, value, module, copy, rank, tag, source, timeout) &
      result(status)
    type(diel_copy), intent(inout) :: d
    type(diel_array), intent(inout) :: value
    character(*), intent(in), optional :: module, tag
    integer, intent(in), optional :: copy, rank
    type(diel_address), intent(out), optional :: source
    real(real64), intent(in), optional :: timeout
    character(kind=c_char), allocatable, target :: of_module(:), of_tag(:)
    type(diel_address) :: found
    type(c_ptr) :: name, label
    integer(c_int32_t) :: from(2)
    from = 0
    if (present(copy)) from(1) = copy
    if (present(rank)) from(2) = rank
    call find_calls(d)
    call optional_text(module, of_module, name)
    call optional_text(tag, of_tag, label)
    status = calls%recv(d, name, from(1), from(2), label, value, found, timeout_of(timeout))
    if (present(source)) source = found
  end function

  ! The module of a source.
  pure function diel_module_of(source) result(module)
    type(diel_address), intent(in) :: source
    character(:), allocatable :: module
    module = until_null(source%module)
  end function

  ! -- boundaries: sections of an array that modules share ---------------------------------------

  ! Open a [[boundary]] of the workflow file. Then bind memory to each section, or use the array of
  ! diel_boundary_array.
  integer function diel_boundary_open(d, name, b) result(status)
    type(diel_copy), intent(inout) :: d
    character(*), intent(in) :: name
    type(diel_boundary), intent(out) :: b
    call find_calls(d)
    b%lanes = 0
    b%memory = c_null_ptr
    status = calls%boundary(d, c_text(name), b%number, b%owned, b%read)
  end function

  ! What a section is: its type and shape, without data, and the index in the boundary that its
  ! first element has, from 1 and as Fortran orders axes; kind is DIEL_OWNED or DIEL_READS.
  integer function diel_section(d, b, kind, index, section, start) result(status)
    type(diel_copy), intent(inout) :: d
    type(diel_boundary), intent(in) :: b
    integer, intent(in) :: kind, index
    type(diel_array), intent(inout) :: section
    integer(int64), intent(out), optional :: start(:)
    integer(c_int64_t) :: begins(DIEL_MOST_AXES)
    call find_calls(d)
    status = calls%section(d, b%number, kind, index, section, begins)
    if (present(start) .and. status == DIEL_DONE) start = begins(section%ndim:1:-1) + 1
  end function

  ! Let an array, or a part of one, be the memory of a section, before the first exchange. It needs
  ! the attribute target, and has to stay until the function returns. Bind all sections of a kind, or
  ! none. An array of another type or shape is not bound, as if it had no memory.
  integer function diel_bind(d, b, kind, index, x) result(status)
    type(diel_copy), intent(inout) :: d
    type(diel_boundary), intent(in) :: b
    integer, intent(in) :: kind, index
    class(*), intent(in), target :: x(..)
    type(diel_array) :: value, section
    integer(c_int64_t) :: strides(DIEL_MOST_AXES)
    call describe(x, value, strides)
    status = diel_section(d, b, kind, index, section)
    if (status /= DIEL_DONE) return
    if (.not. is_fit(value, section)) value%data = c_null_ptr
    status = calls%bind(d, b%number, kind, index, value%data, strides)
  end function

  pure logical function is_fit(value, section)
    type(diel_array), intent(in) :: value, section
    is_fit = value%ndim == section%ndim .and. all(value%shape == section%shape) .and. &
      any(value%dtype == [section%dtype, int(NOT_CONTIGUOUS, c_int32_t)])
  end function

  ! The whole array of a boundary, in memory of diel, whose indices mean the same on all ranks.
  integer function diel_boundary_array(d, b, value) result(status)
    type(diel_copy), intent(inout) :: d
    type(diel_boundary), intent(in) :: b
    type(diel_array), intent(inout) :: value
    call find_calls(d)
    status = calls%whole(d, b%number, value)
  end function

  ! Send the sections that this rank owns to the ranks that read them; they are copied.
  integer function diel_push(d, b, timeout) result(status)
    type(diel_copy), intent(inout) :: d
    type(diel_boundary), intent(inout) :: b
    real(real64), intent(in), optional :: timeout
    status = exchange_how(d, b, PUSH, timeout)
  end function

  ! Receive the sections that this rank reads; `step` says of which push.
  integer function diel_pull(d, b, timeout, step) result(status)
    type(diel_copy), intent(inout) :: d
    type(diel_boundary), intent(inout) :: b
    real(real64), intent(in), optional :: timeout
    integer(int64), intent(out), optional :: step
    status = exchange_how(d, b, PULL, timeout, step)
  end function

  ! Push and pull, without a copy of memory that is in one piece.
  integer function diel_exchange(d, b, timeout) result(status)
    type(diel_copy), intent(inout) :: d
    type(diel_boundary), intent(inout) :: b
    real(real64), intent(in), optional :: timeout
    status = exchange_how(d, b, EXCHANGE, timeout)
  end function

  integer function exchange_how(d, b, how, timeout, step) result(status)
    type(diel_copy), intent(inout) :: d
    type(diel_boundary), intent(in) :: b
    integer(c_int32_t), intent(in) :: how
    real(real64), intent(in), optional :: timeout
    integer(int64), intent(out), optional :: step
    integer(c_int64_t) :: found
    call find_calls(d)
    status = calls%exchange(d, b%number, how, timeout_of(timeout), found)
    if (present(step)) step = found
  end function

  ! -- checkpoints, and what a copy reports ------------------------------------------------------

  ! Add a value to the state of this rank, which diel_checkpoint then saves.
  integer function diel_save(d, name, x) result(status)
    type(diel_copy), intent(inout) :: d
    character(*), intent(in) :: name
    class(*), intent(in), target :: x(..)
    type(diel_array) :: value
    value = diel_value(x)
    status = diel_save_value(d, name, value)
  end function

  integer function diel_save_value(d, name, value) result(status)
    type(diel_copy), intent(inout) :: d
    character(*), intent(in) :: name
    type(diel_array), intent(inout) :: value
    call find_calls(d)
    status = calls%save(d, c_text(name), value)
  end function

  ! Find a value of the state that was saved before; DIEL_ABSENT if there is none.
  integer function diel_restore(d, name, x) result(status)
    type(diel_copy), intent(inout) :: d
    character(*), intent(in) :: name
    class(*), intent(inout), target :: x(..)
    type(diel_array) :: value
    value = diel_value(x)
    status = diel_restore_value(d, name, value)
    if (status == DIEL_DONE) call pad(x, value)
  end function

  integer function diel_restore_value(d, name, value) result(status)
    type(diel_copy), intent(inout) :: d
    character(*), intent(in) :: name
    type(diel_array), intent(inout) :: value
    call find_calls(d)
    status = calls%restore(d, c_text(name), value)
  end function

  ! Add to what the copy returns: a table of values by name, in the journal; of its rank 0.
  integer function diel_result(d, name, x) result(status)
    type(diel_copy), intent(inout) :: d
    character(*), intent(in) :: name
    class(*), intent(in), target :: x(..)
    type(diel_array) :: value
    value = diel_value(x)
    status = diel_result_value(d, name, value)
  end function

  integer function diel_result_value(d, name, value) result(status)
    type(diel_copy), intent(inout) :: d
    character(*), intent(in) :: name
    type(diel_array), intent(inout) :: value
    call find_calls(d)
    status = calls%result(d, c_text(name), value)
  end function

  integer function diel_checkpoint(d) result(status)
    type(diel_copy), intent(inout) :: d
    call find_calls(d)
    status = calls%checkpoint(d)
  end function

  ! Progress, as displays show it; the total may be unknown.
  integer function diel_progress(d, done, total, text) result(status)
    type(diel_copy), intent(inout) :: d
    real(real64), intent(in) :: done
    real(real64), intent(in), optional :: total
    character(*), intent(in), optional :: text
    character(:), allocatable :: words
    words = c_null_char
    if (present(text)) words = c_text(text)
    call find_calls(d)
    status = calls%progress(d, done, timeout_of(total), words)
  end function

  ! Declare that the group can go on without this copy, if its rank dies.
  integer function diel_allow_loss(d) result(status)
    type(diel_copy), intent(inout) :: d
    call find_calls(d)
    status = calls%allow_loss(d)
  end function

  ! -- when to stop, and MPI ---------------------------------------------------------------------

  ! DIEL_STOP_NOW where the run or this copy is ending, DIEL_ENDS_SOON where signal_before is
  ! reached; else DIEL_GO_ON, which is 0.
  integer function diel_must_stop(d) result(what)
    type(diel_copy), intent(inout) :: d
    integer(c_int32_t) :: found
    call find_calls(d)
    found = DIEL_GO_ON
    if (calls%must_stop(d, found) == DIEL_STOPPED) found = DIEL_STOP_NOW
    what = found
  end function

  ! Seconds until this copy has to have ended; below 0 where nothing ends it.
  real(real64) function diel_time_left(d) result(left_s)
    type(diel_copy), intent(inout) :: d
    call find_calls(d)
    left_s = -1
    if (calls%time_left(d, left_s) /= DIEL_DONE) left_s = -1
  end function

  ! The communicator of this copy; collective over the copy at the first call. It is what `use mpi`
  ! and mpif.h call a communicator, and the MPI_VAL of one of mpi_f08.
  integer function diel_comm_handle(d, handle) result(status)
    type(diel_copy), intent(inout) :: d
    integer(int32), intent(out) :: handle
    call find_calls(d)
    status = calls%comm(d, OF_COPY, handle)
  end function

  ! That of all copies of the module; collective over them at the first call.
  integer function diel_module_comm_handle(d, handle) result(status)
    type(diel_copy), intent(inout) :: d
    integer(int32), intent(out) :: handle
    call find_calls(d)
    status = calls%comm(d, OF_MODULE, handle)
  end function

end module
