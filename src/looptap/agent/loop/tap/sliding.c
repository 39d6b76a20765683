/* Sums of floats over the last events, as streams/aggregations/sliding.py defines them, without an array for each step.

   The steps and their order are the same, and each is one addition or subtraction: so each sum has the same bits. */

#include "tap.h"

typedef struct {
    double total;
    double lost; /* what rounding has lost of it (Knuth's TwoSum) */
} Sum;

static double
lost_in(double before, double item, double after)
{
    double part = after - before;
    return (before - (after - part)) + (item - part);
}

static Sum
plus_item(Sum sum, double item)
{
    double total = sum.total + item;
    return (Sum){total, sum.lost + lost_in(sum.total, item, total)};
}

static double
value_of_both(Sum older, Sum later)
{
    double total = older.total + later.total;
    double lost = (older.lost + lost_in(older.total, later.total, total)) + later.lost;
    return isfinite(lost) ? total + lost : total;
}

static double
value_of_sum(Sum sum)
{
    return isfinite(sum.lost) ? sum.total + sum.lost : sum.total;
}

/* Write the sum from each item on: totals, then what they have lost. */
static void
write_suffixes(const double *items, Py_ssize_t size, double *totals, double *lost)
{
    for (Py_ssize_t i = size - 1; i >= 0; i--) {
        double alone = items[i] + 0.0; /* as the first item of a sum: no zero is negative */
        double nothing = alone - alone; /* NaN if it is not finite */
        if (i == size - 1) {
            totals[i] = alone;
            lost[i] = nothing;
        }
        else {
            totals[i] = totals[i + 1] + alone;
            lost[i] = lost[i + 1] + (nothing + lost_in(alone, totals[i + 1], totals[i]));
        }
    }
}

/* The window as it slides. `items` are those of the younger half, `older` the sums that events will drop. */
typedef struct {
    Py_ssize_t size;
    const double *totals; /* of the older half: the given ones, or in `suffixes` */
    const double *lost;
    Py_ssize_t older; /* how many there are, and */
    Py_ssize_t next;  /* which comes next */
    int has_older;
    double *suffixes; /* totals and what they have lost, of `size` items each; NULL while the given ones last */
    double *items;
    Py_ssize_t count;
    Sum younger;
} Slide;

/* The sum of the window once `item` has come; -1 in `*failed` without memory. */
static double
slide_by(Slide *self, double item, int *failed)
{
    if (self->count == self->size) { /* the younger half becomes the older one, and loses its first item */
        if (self->suffixes == NULL) {
            self->suffixes = PyMem_Malloc(2 * self->size * sizeof(double));
            if (self->suffixes == NULL) {
                *failed = -1;
                return 0.0;
            }
        }
        write_suffixes(self->items, self->size, self->suffixes, self->suffixes + self->size);
        self->totals = self->suffixes;
        self->lost = self->suffixes + self->size;
        self->older = self->size;
        self->next = self->has_older = 1;
        self->count = 0;
        self->younger = (Sum){0.0, 0.0};
    }
    self->items[self->count++] = item;
    self->younger = plus_item(self->younger, item);
    if (self->next < self->older) {
        Sum older = {self->totals[self->next], self->lost[self->next]};
        self->next++;
        return value_of_both(older, self->younger);
    }
    self->has_older = 0;
    return value_of_sum(self->younger);
}

static PyObject *
doubles(const double *numbers, Py_ssize_t count)
{
    return PyBytes_FromStringAndSize((const char *)numbers, count * (Py_ssize_t)sizeof(double));
}

/* (bytes of the sums; bytes of the older half's totals, and of what they have lost, both None if they are the given
   ones; how many of these are used up; whether there is an older half; the younger half's items, total, loss) */
static PyObject *
slide_result(const Slide *self, const double *sums, Py_ssize_t count)
{
    PyObject *younger = PyList_New(self->count);
    for (Py_ssize_t i = 0; younger != NULL && i < self->count; i++) {
        PyObject *item = PyFloat_FromDouble(self->items[i]);
        if (item == NULL) {
            Py_CLEAR(younger);
        }
        else {
            PyList_SET_ITEM(younger, i, item);
        }
    }
    if (younger == NULL) {
        return NULL;
    }
    Py_ssize_t left = self->suffixes == NULL ? 0 : self->older - self->next;
    PyObject *given = self->suffixes == NULL ? Py_None : NULL;
    PyObject *totals = given != NULL ? Py_NewRef(given) : doubles(self->totals + self->next, left);
    PyObject *lost = given != NULL ? Py_NewRef(given) : doubles(self->lost + self->next, left);
    PyObject *all = doubles(sums, count);
    if (totals == NULL || lost == NULL || all == NULL) {
        Py_XDECREF(totals);
        Py_XDECREF(lost);
        Py_XDECREF(all);
        Py_DECREF(younger);
        return NULL;
    }
    return Py_BuildValue("(NNNnNNdd)", all, totals, lost, self->next, PyBool_FromLong(self->has_older), younger,
                         self->younger.total, self->younger.lost);
}

static Py_ssize_t
count_of(const Py_buffer *buffer)
{
    return buffer->len % (Py_ssize_t)sizeof(double) ? -1 : buffer->len / (Py_ssize_t)sizeof(double);
}

static PyObject *
slide_all(Slide *self, PyObject *younger, const double *given, Py_ssize_t count)
{
    self->items = PyMem_Malloc(self->size * sizeof(double));
    double *sums = PyMem_Malloc((count + 1) * sizeof(double));
    int failed = self->items == NULL || sums == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; !failed && i < self->count; i++) {
        PyObject *item = PyList_GET_ITEM(younger, i);
        failed = PyFloat_CheckExact(item) ? 0 : 1;
        self->items[i] = failed ? 0.0 : PyFloat_AS_DOUBLE(item);
    }
    for (Py_ssize_t i = 0; !failed && i < count; i++) {
        sums[i] = slide_by(self, given[i], &failed);
    }
    PyObject *result = NULL;
    if (failed > 0) {
        PyErr_SetString(PyExc_TypeError, "the items of the younger half are floats.");
    }
    else {
        result = failed ? PyErr_NoMemory() : slide_result(self, sums, count);
    }
    PyMem_Free(self->items);
    PyMem_Free(self->suffixes);
    PyMem_Free(sums);
    return result;
}

/* slide(totals, lost, has_older, younger, total, lost, items, size) */
static PyObject *
slide(PyObject *module, PyObject *args)
{
    (void)module;
    Py_buffer totals, lost, items;
    PyObject *younger;
    Slide self = {0};
    if (!PyArg_ParseTuple(args, "y*y*pO!ddy*n:slide", &totals, &lost, &self.has_older, &PyList_Type, &younger,
                          &self.younger.total, &self.younger.lost, &items, &self.size)) {
        return NULL;
    }
    self.totals = totals.buf;
    self.lost = lost.buf;
    self.older = count_of(&totals);
    self.count = PyList_GET_SIZE(younger);
    PyObject *result = NULL;
    if (self.older < 0 || self.older != count_of(&lost) || count_of(&items) < 0) {
        PyErr_SetString(PyExc_ValueError, "totals, losses and items are doubles, as many losses as totals.");
    }
    else if (self.size < 1 || self.size > PY_SSIZE_T_MAX / (Py_ssize_t)(2 * sizeof(double)) ||
             self.count > self.size || self.older >= self.size) {
        PyErr_SetString(PyExc_ValueError, "a window of this size does not have that many items.");
    }
    else {
        result = slide_all(&self, younger, items.buf, count_of(&items));
    }
    PyBuffer_Release(&totals);
    PyBuffer_Release(&lost);
    PyBuffer_Release(&items);
    return result;
}
