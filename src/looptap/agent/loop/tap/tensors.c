/* The number in a scalar CPU tensor, without torch's headers and without `.item()`.

   torch exports functions in a capsule, `torch.Tensor.__dlpack_c_exchange_api__`: DLPack's C exchange interface,
   version 1. They give a tensor's address, type and device, and refuse tensors that have no memory of their own
   (sparse, quantized, inside a transform of torch.func). What this does not know, it leaves to `.item()`. DLPack does
   not tell that a tensor is negated lazily; `Tensor.is_neg` does.

   Both go through torch's Python bindings: a hundred lines of code that a training step has put out of the caches, and
   `is_neg` gives the GIL away and is seen by function modes. So only the first tensor of each type is read so, where no
   mode is active. The others are read through torch's stable C interface (torch/csrc/inductor/aoti_torch/c/shim.h),
   whose handle of a tensor is the address of the at::Tensor in the Python object. That it stands right behind the
   object's header is an assumption, which the first tensor has to prove: both ways must find the same type and address
   there. */

#include "tap.h"

#if defined(__linux__) || defined(__APPLE__)
#include <dlfcn.h>
#define HAS_DLSYM
#endif

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

/* ------------------------------------------------------------ torch's C interface */

/* Its functions return 0, or catch an exception and print it: they are asked in an order in which none is thrown. */
typedef struct {
    int32_t (*get_dtype)(const void *handle, int32_t *type);
    int32_t (*get_device_type)(const void *handle, int32_t *device);
    int32_t (*get_dim)(const void *handle, int64_t *dimensions);
    int32_t (*get_data_ptr)(const void *handle, void **data);
    bool (*is_neg)(const void *handle);           /* at::native::is_neg(const at::Tensor &) */
    bool (*has_storage)(const void *tensor_impl); /* c10::TensorImpl::has_storage() const */
    uint32_t proven;                              /* by bits: the types of tensors that were read in both ways */
} Torch;

enum { MAX_IMPL_BYTES = 512 }; /* a c10::TensorImpl is smaller */

static Torch torch; /* the process loads one torch only */

/* By the numbers of c10::ScalarType, which files keep too. */
static const DLDataType scalar_types[] = {
    {DL_UINT, 8, 1},   {DL_INT, 8, 1},    {DL_INT, 16, 1}, {DL_INT, 32, 1}, {DL_INT, 64, 1}, {DL_FLOAT, 16, 1},
    {DL_FLOAT, 32, 1}, {DL_FLOAT, 64, 1}, {0, 0, 0},       {0, 0, 0},       {0, 0, 0},       {DL_BOOL, 8, 1},
    {0, 0, 0},         {0, 0, 0},         {0, 0, 0},       {DL_BFLOAT, 16, 1},
};

#ifdef HAS_DLSYM
static int
find(void *library, const char *name, void *place)
{
    void *found = dlsym(library, name);
    memcpy(place, &found, sizeof(found));
    return found != NULL;
}
#endif

/* Find torch's functions, from the library that has the exchange interface; without them, `get_dtype` is NULL. */
static void
find_torch(const DLPackExchangeAPI *api)
{
    memset(&torch, 0, sizeof(torch));
#ifdef HAS_DLSYM
    Dl_info info;
    const void *function;
    memcpy(&function, &api->dltensor_from_py_object_no_sync, sizeof(function));
    if (!dladdr(function, &info)) {
        return;
    }
    void *library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL) {
        return;
    }
    if (!find(library, "aoti_torch_get_device_type", &torch.get_device_type) ||
        !find(library, "aoti_torch_get_dim", &torch.get_dim) ||
        !find(library, "aoti_torch_get_data_ptr", &torch.get_data_ptr) ||
        !find(library, "_ZN2at6native6is_negERKNS_6TensorE", &torch.is_neg) ||
        !find(library, "_ZNK3c1010TensorImpl11has_storageEv", &torch.has_storage) ||
        !find(library, "aoti_torch_get_dtype", &torch.get_dtype)) {
        torch.get_dtype = NULL;
    }
    dlclose(library); /* which stays loaded, as torch does */
#else
    (void)api;
#endif
}

static const void *
handle_of(PyObject *tensor)
{
    return (const char *)tensor + sizeof(PyObject);
}

/* The type of a tensor by its number, and where a scalar CPU tensor has its value; NULL for every other tensor, and if
   the type is not among `types`. */
static const void *
look_at(PyObject *tensor, uint32_t types, int32_t *type)
{
    const void *handle = handle_of(tensor);
    int32_t device;
    int64_t dimensions;
    void *data;
    if (torch.get_dtype(handle, type) || *type < 0 || *type >= 32 || !(types >> *type & 1) ||
        torch.get_device_type(handle, &device) || device != 0 || torch.get_dim(handle, &dimensions) ||
        dimensions != 0 || torch.is_neg(handle) || !torch.has_storage(*(void *const *)handle) ||
        torch.get_data_ptr(handle, &data)) {
        return NULL;
    }
    return data;
}

/* A scalar CPU tensor has been read as `seen`: read the next ones of its type here, if that gives the same. */
static void
prove(PyObject *tensor, const DLTensor *seen)
{
    if (torch.get_dtype == NULL || Py_TYPE(tensor)->tp_basicsize < (Py_ssize_t)(sizeof(PyObject) + sizeof(void *))) {
        return;
    }
    /* Its shape is in the c10::TensorImpl, to which the at::Tensor points. */
    uintptr_t impl = *(const uintptr_t *)handle_of(tensor), shape = (uintptr_t)seen->shape;
    int32_t type = 0;
    uint32_t known = 0;
    for (size_t i = 0; i < sizeof(scalar_types) / sizeof(scalar_types[0]); i++) {
        known |= memcmp(&scalar_types[i], &seen->dtype, sizeof(seen->dtype)) == 0 ? 1u << i : 0;
    }
    if (impl >= shape || shape - impl >= MAX_IMPL_BYTES) {
        torch.get_dtype = NULL;
    }
    else if (look_at(tensor, known, &type) == (const char *)seen->data + seen->byte_offset) {
        torch.proven |= known;
    }
}

/* ------------------------------------------------------------ DLPack's exchange interface */

static int read_tensor(const TapState *state, PyObject *tensor, Value *value);

/* know_tensors(type, is_negated, count_modes, capsule, scalars): the type of tensors, how they are read, the function
   that counts the function modes, and a scalar of each type to read first. */
static PyObject *
know_tensors(PyObject *module, PyObject *args)
{
    PyObject *type, *is_negated, *count_modes, *capsule, *scalars;
    if (!PyArg_ParseTuple(args, "O!OOOO!:know_tensors", &PyType_Type, &type, &is_negated, &count_modes, &capsule,
                          &PyTuple_Type, &scalars)) {
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
    PyObject *const before[] = {(PyObject *)state->tensor, state->is_negated, state->exchange, state->count_modes};
    state->tensor = (PyTypeObject *)Py_NewRef(type);
    state->is_negated = Py_NewRef(is_negated);
    state->exchange = Py_NewRef(capsule);
    state->exchange_api = api;
    state->count_modes = NULL; /* of the host's there are none now, only a default device */
    find_torch(api);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(scalars); i++) {
        Value value;
        if (Py_IS_TYPE(PyTuple_GET_ITEM(scalars, i), state->tensor) &&
            read_tensor(state, PyTuple_GET_ITEM(scalars, i), &value) < 0) {
            PyErr_Clear();
        }
    }
    state->count_modes = Py_NewRef(count_modes);
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

/* 1 if function modes would see how a tensor is read, 0 if there are none, -1 with an error. */
static int
is_in_modes(const TapState *state)
{
    if (state->count_modes == NULL) {
        return 0;
    }
    PyObject *function = Py_NewRef(state->count_modes), *count = PyObject_CallNoArgs(function);
    Py_DECREF(function);
    int inside = count == NULL ? -1 : PyObject_IsTrue(count);
    Py_XDECREF(count);
    return inside;
}

static int
read_tensor(const TapState *state, PyObject *tensor, Value *value)
{
    int32_t type;
    const void *data = torch.proven ? look_at(tensor, torch.proven, &type) : NULL;
    if (data != NULL) {
        return number_at(data, scalar_types[type], value);
    }
    int inside = is_in_modes(state);
    if (inside != 0) {
        return inside < 0 ? leave_to_function() : 0;
    }
    const DLPackExchangeAPI *api = state->exchange_api;
    PyObject *is_negated = Py_NewRef(state->is_negated);
    DLTensor seen;
    memset(&seen, 0, sizeof(seen));
    /* Here other threads may run; so they may where an error is made. */
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
    prove(tensor, &seen);
    return number_at((const char *)seen.data + seen.byte_offset, seen.dtype, value);
}
