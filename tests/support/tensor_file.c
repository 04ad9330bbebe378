#include "support/tensor_file.h"

#include "core/safetensors.h"
#include "support/test.h"

#include <math.h>
#include <stdlib.h>

double *tensor_values(const char *path, const char *name, int64_t *count) {
    weft_safetensors *file;
    expect_ok(weft_safetensors_open(path, &file));
    const weft_safetensor *t = weft_safetensors_find(file, name);
    if (!t) fail_msg("%s: no '%s'", path, name);
    *count = t->bytes / weft_file_dtype_size(t->dtype);
    double *values = malloc((size_t)*count * sizeof *values);
    assert_non_null(values);
    weft_safetensor_values(t, 0, *count, values);
    weft_safetensors_close(file);
    return values;
}

double tensors_apart(const char *a, const char *b, const char *name) {
    int64_t n, m;
    double *x = tensor_values(a, name, &n), *y = tensor_values(b, name, &m), most = 0;
    assert_int_equal(n, m);
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs(x[i] - y[i]));
    free(x);
    free(y);
    return most;
}
