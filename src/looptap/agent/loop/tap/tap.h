/* What the files of looptap._tap share. Each .c file says what it is for; emit.c is where to begin. */

#ifndef LOOPTAP_TAP_H
#define LOOPTAP_TAP_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef Py_GIL_DISABLED
#error "looptap's tap relies on the GIL; looptap runs in pure Python here."
#endif

/* Raise it with each change of what Python code and this exchange: streams/native/compiled.py names the same one, and
   leaves a module alone that was built from older sources. */
#define INTERFACE_VERSION 8

/* One number, or an object, as a row holds it. */
typedef union {
    int64_t integer;
    double real;
    PyObject *object;
} Cell;

/* What all cells of a column are. */
typedef enum { NOTHING = 0, INTEGER = 'q', REAL = 'd', BOOLEAN = '?', OBJECT = 'O' } Kind;

typedef struct {
    Kind kind;
    Cell cell; /* an object is borrowed */
} Value;

#define HEADER_COUNT 3 /* elements of a row before its values: number, time, the number of the last event before */
#define MAX_NAMES 64   /* values of an event that C code keeps; of more, the Python function does */

/* ------------------------------------------------------------ objects */

typedef struct {
    PyObject_HEAD
    long long number;
    long long group_start;
    long long groups_ended;
    long long last_deferred;
    double last_time;
    char has_work;
    char only_groups;
    PyObject *inner_groups;
    PyObject *queries;
    PyObject *shortcut; /* NULL, None or a PlanState */
    PyObject *clock;
    PyObject *capturing;
    PyObject *lock;
} SourceState;

typedef struct {
    PyObject_HEAD
    PyObject *rows;
    PyObject *names;
    struct Rows *kept; /* the same rows if C code may append to them, else NULL */
    Py_ssize_t count;  /* of the names */
    Py_ssize_t limit;
    Py_ssize_t every; /* of how many events one is more than kept; 0: none */
    long long rest_number; /* until this event, and until this time, none is */
    double rest_time;
    long long passed_to; /* the newest event that was only kept for that reason */
    char stale;
    PyObject *keywords; /* the keyword names of the last event, and where among them those of `names` stand */
    unsigned char places[MAX_NAMES];
} PlanState;

typedef struct Rows {
    PyObject_HEAD
    Py_ssize_t width;
    Py_ssize_t count;    /* rows */
    Py_ssize_t capacity; /* rows that fit */
    Cell *cells;         /* row after row: an event touches one piece of memory, which is cold after a training step */
    Kind *kinds;         /* of the values, by column */
    PyObject **marks;    /* of each row the object in place of its third element, or NULL; NULL if none has one */
} Rows;

/* What the module knows: the types, and how to read tensors. */
typedef struct {
    PyTypeObject *source_type;
    PyTypeObject *plan_type;
    PyTypeObject *rows_type;
    PyTypeObject *lock_type;
    PyTypeObject *emit_type;
    Py_ssize_t lock_offset; /* of the count of holders in a Lock */
    PyObject *lock_acquire; /* of the class below it */
    PyObject *lock_release;
    PyObject *monotonic;      /* time.monotonic */
    PyTypeObject *tensor;     /* torch.Tensor, or NULL */
    PyObject *is_negated;     /* torch.Tensor.is_neg */
    PyObject *count_modes;    /* torch._C._len_torch_function_stack, NULL while no mode is active */
    const void *exchange_api; /* of its DLPack capsule, which `exchange` keeps alive */
    PyObject *exchange;
    PyObject *cuda;             /* the names of torch.cuda, a dict, and */
    PyObject *initialized_name; /* the one that tells whether the job uses it */
} TapState;

/* ------------------------------------------------------------ what the files have of each other */

static PyModuleDef tap_module;

/* rows.c: append a row whole, or nothing: -1 with MemoryError. A row with a mark has no values. */
static int rows_append(Rows *self, long long number, double now, long long began, PyObject *mark, const Value *values);
/* The value of any object; a number in a cell if it is one. */
static Value value_of(PyObject *object);

/* tensors.c: 1 if the tensor's number is in `value`; 0 if the Python function has to read it; -1 with an error that
   goes through. Other code and threads may run meanwhile. */
static int read_tensor(const TapState *state, PyObject *tensor, Value *value);

/* emit.c: clear an error that the Python function will find again; -1 for Ctrl-C and the like, which go through. */
static int leave_to_function(void);

static inline int
is_held(const TapState *state, const PyObject *lock)
{
    return *(const Py_ssize_t *)((const char *)lock + state->lock_offset) != 0;
}

#endif
