/* The number in a scalar CPU tensor, without torch's headers and without `.item()`, which takes three times as long
   after a training step.

   torch exports functions in a capsule, `torch.Tensor.__dlpack_c_exchange_api__`: DLPack's C exchange interface,
   version 1. They give a tensor's address, type and device, and refuse tensors that have no memory of their own
   (sparse, quantized, inside a transform of torch.func). What this does not know, it leaves to `.item()`. DLPack does not
   tell that a tensor is negated lazily; `Tensor.is_neg` does. */

#include "tap.h"

/* Of dlpack.h, version 1.3, as far as it is used. */
typedef struct {
    int32_t device_type;
    int32_t device_id;
} DLDevice;

typedef struct {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} DLDataType;

typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} DLTensor;

typedef struct {
    uint32_t major;
    uint32_t minor;
    void *older;
    void *managed_tensor_allocator;
    void *managed_tensor_from_py_object_no_sync;
    void *managed_tensor_to_py_object_no_sync;
    int (*dltensor_from_py_object_no_sync)(void *object, DLTensor *out);
    void *current_work_stream;
} DLPackExchangeAPI;

enum { DL_CPU = 1, DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4, DL_BOOL = 6 };

/* know_tensors(type, is_negated, capsule): the type of tensors, and how they are read. */
static PyObject *
know_tensors(PyObject *module, PyObject *args)
{
    PyObject *type, *is_negated, *capsule;
    if (!PyArg_ParseTuple(args, "O!OO:know_tensors", &PyType_Type, &type, &is_negated, &capsule)) {
        return NULL;
    }
    const DLPackExchangeAPI *api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (api == NULL) {
        return NULL;
    }
    if (api->major != 1 || api->dltensor_from_py_object_no_sync == NULL) {
        return PyErr_Format(PyExc_ValueError, "DLPack's exchange interface of version %u is not known.", api->major);
    }
    TapState *state = PyModule_GetState(module);
    PyObject *const before[] = {(PyObject *)state->tensor, state->is_negated, state->exchange};
    state->tensor = (PyTypeObject *)Py_NewRef(type);
    state->is_negated = Py_NewRef(is_negated);
    state->exchange = Py_NewRef(capsule);
    state->exchange_api = api;
    for (size_t i = 0; i < sizeof(before) / sizeof(before[0]); i++) {
        Py_XDECREF(before[i]);
    }
    Py_RETURN_NONE;
}

static int
integer(Value *value, int64_t number)
{
    value->kind = INTEGER;
    value->cell.integer = number;
    return 1;
}

static int
real(Value *value, double number)
{
    value->kind = REAL;
    value->cell.real = number;
    return 1;
}

/* The number at an address; 0 for a type that is left to `.item()`. */
static int
number_at(const char *at, DLDataType type, Value *value)
{
    union {
        int8_t i8;
        int16_t i16;
        int32_t i32;
        int64_t i64;
        uint8_t u8;
        uint16_t u16;
        uint32_t u32;
        float f32;
        double f64;
    } number;
    if (type.lanes != 1 || type.bits > 64) {
        return 0;
    }
    memcpy(&number, at, type.bits / 8);
    switch (type.code << 8 | type.bits) {
    case DL_FLOAT << 8 | 32:
        return real(value, (double)number.f32);
    case DL_FLOAT << 8 | 64:
        return real(value, number.f64);
    case DL_FLOAT << 8 | 16:
        return real(value, PyFloat_Unpack2(at, !PY_BIG_ENDIAN));
    case DL_BFLOAT << 8 | 16:
        number.u32 = (uint32_t)number.u16 << 16; /* the upper half of a float */
        return real(value, (double)number.f32);
    case DL_INT << 8 | 8:
        return integer(value, number.i8);
    case DL_INT << 8 | 16:
        return integer(value, number.i16);
    case DL_INT << 8 | 32:
        return integer(value, number.i32);
    case DL_INT << 8 | 64:
        return integer(value, number.i64);
    case DL_UINT << 8 | 8:
        return integer(value, number.u8);
    case DL_BOOL << 8 | 8:
        value->kind = BOOLEAN;
        value->cell.integer = number.u8 != 0;
        return 1;
    default:
        return 0;
    }
}

static int
read_tensor(const TapState *state, PyObject *tensor, Value *value)
{
    const DLPackExchangeAPI *api = state->exchange_api;
    PyObject *is_negated = Py_NewRef(state->is_negated);
    DLTensor seen;
    memset(&seen, 0, sizeof(seen));
    /* Here other threads may run, and a mode of torch may run its code; so they may where an error is made. */
    PyObject *negated = PyObject_CallOneArg(is_negated, tensor);
    Py_DECREF(is_negated);
    Py_XDECREF(negated);
    if (negated == NULL) {
        return leave_to_function();
    }
    if (negated != Py_False) {
        return 0;
    }
    if (api->dltensor_from_py_object_no_sync(tensor, &seen) != 0) {
        return leave_to_function();
    }
    if (seen.device.device_type != DL_CPU || seen.ndim != 0 || seen.data == NULL) {
        return 0;
    }
    return number_at((const char *)seen.data + seen.byte_offset, seen.dtype, value);
}
