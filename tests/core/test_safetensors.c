/* Safetensors: what is written is read back, byte for byte; whatever is wrong with a file is an
 * error that names it, and never a crash. */
#include "base/random.h"
#include "core/safetensors.h"
#include "support/command.h"
#include "support/test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <math.h>

static const char *path_of(const char *name) {
    return scratch_path("%s", name);
}

static void write_bytes(const char *path, const void *data, size_t bytes) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static unsigned char *read_bytes(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *bytes = (size_t)ftell(file);
    rewind(file);
    unsigned char *data = malloc(*bytes + 1);
    assert_int_equal(fread(data, 1, *bytes, file), *bytes);
    fclose(file);
    return data;
}

/* A file of that header and as many data bytes. */
static void write_raw(const char *path, const char *header, size_t header_bytes,
                      size_t data_bytes) {
    unsigned char *all = calloc(1, 8 + header_bytes + data_bytes + 1);
    uint64_t length = header_bytes;
    memcpy(all, &length, 8);
    memcpy(all + 8, header, header_bytes);
    write_bytes(path, all, 8 + header_bytes + data_bytes);
    free(all);
}

static const double f64[] = {1.5, -2.25, 1e300};
static const float f32[] = {1, 2, 3, 4, 5, 6};
static const uint16_t bf16[] = {0x3f80, 0x4000, 0x4040};
static const int32_t i32[] = {7};
static const int64_t i64[] = {-1, 1LL << 40};

static const weft_safetensor sample[] = {
    {.name = "h.10.w", .dtype = WEFT_FILE_F32, .ndim = 2, .shape = {2, 3}, .data = f32},
    {.name = "b", .dtype = WEFT_FILE_BF16, .ndim = 1, .shape = {3}, .data = bf16},
    {.name = "h.2.w", .dtype = WEFT_FILE_F64, .ndim = 3, .shape = {1, 3, 1}, .data = f64},
    {.name = "step", .dtype = WEFT_FILE_I32, .ndim = 0, .data = i32},
    {.name = "ü \"quoted\"\n", .dtype = WEFT_FILE_I64, .ndim = 1, .shape = {2}, .data = i64},
    {.name = "many",
     .dtype = WEFT_FILE_I32,
     .ndim = 8,
     .shape = {1, 1, 1, 1, 1, 1, 1, 1},
     .data = i32},
};
enum { SAMPLES = sizeof sample / sizeof sample[0] };

static const char *const metadata[] = {"format", "pt", "made by", "a test", NULL};

static void check_message(const char *expect) {
    const char *message = weft_error_message();
    if (!strstr(message, expect) || strchr(message, '\n'))
        fail_msg("the message is `%s`, and should have `%s`", message, expect);
}

static void refuse(const char *path, const char *expect) {
    weft_safetensors *file = (weft_safetensors *)&file;
    if (weft_safetensors_open(path, &file) == WEFT_OK)
        fail_msg("a bad file was read; it should give `%s`", expect);
    assert_null(file);
    check_message(expect);
    check_message(path);
}

TEST(test_what_is_written_is_read) {
    char path[512];
    snprintf(path, sizeof path, "%s", path_of("sample"));
    assert_int_equal(weft_safetensors_write(path, sample, SAMPLES, metadata, NULL), WEFT_OK);
    weft_safetensors *file;
    assert_int_equal(weft_safetensors_open(path, &file), WEFT_OK);
    assert_int_equal(weft_safetensors_count(file), SAMPLES);
    for (int64_t i = 0; i < SAMPLES; i++) {
        const weft_safetensor *want = &sample[i], *got = weft_safetensors_find(file, want->name);
        assert_non_null(got);
        assert_int_equal(got->dtype, want->dtype);
        assert_int_equal(got->ndim, want->ndim);
        int64_t bytes = weft_file_dtype_size(want->dtype);
        for (int d = 0; d < want->ndim; d++) {
            assert_int_equal(got->shape[d], want->shape[d]);
            bytes *= want->shape[d];
        }
        assert_int_equal(got->bytes, bytes);
        assert_memory_equal(got->data, want->data, (size_t)bytes);
        assert_int_equal((uintptr_t)got->data % (uintptr_t)weft_file_dtype_size(want->dtype), 0);
        if (i > 0)
            assert_true(strcmp(weft_safetensors_at(file, i - 1)->name,
                               weft_safetensors_at(file, i)->name) < 0);
    }
    assert_null(weft_safetensors_find(file, "nothing"));
    assert_string_equal(weft_safetensors_metadata(file, "made by"), "a test");
    assert_null(weft_safetensors_metadata(file, "host"));
    weft_safetensors_close(file);
}

static int until_failure; /* allocations for JSON that still succeed; below 0: all do */

static void *allocate(size_t bytes) {
    return until_failure-- == 0 ? NULL : malloc(bytes);
}

/* A file that jansson spoiled when it could not have memory is no matter here: nobody can open it. */
TEST(test_no_file_is_without_its_metadata) {
    char path[512];
    int refused = 0, failures = 0;
    snprintf(path, sizeof path, "%s", path_of("short of memory"));
    json_set_alloc_funcs(allocate, free);
    for (bool failed = true; failed; failures++) {
        until_failure = failures;
        weft_status status = weft_safetensors_write(path, NULL, 0, metadata, NULL);
        failed = until_failure < 0;
        until_failure = -1;
        weft_safetensors *file;
        refused += status != WEFT_OK;
        if (status != WEFT_OK || weft_safetensors_open(path, &file) != WEFT_OK) continue;
        const char *by = weft_safetensors_metadata(file, "made by");
        if (!by) fail_msg("without memory %d it was written without them", failures);
        assert_string_equal(by, "a test");
        weft_safetensors_close(file);
    }
    json_set_alloc_funcs(malloc, free);
    assert_true(refused > 4);
}

TEST(test_equal_tensors_are_equal_files) {
    weft_safetensor reversed[SAMPLES];
    for (int i = 0; i < SAMPLES; i++)
        reversed[i] = sample[SAMPLES - 1 - i];
    char first[512], second[512];
    snprintf(first, sizeof first, "%s", path_of("first"));
    snprintf(second, sizeof second, "%s", path_of("second"));
    assert_int_equal(weft_safetensors_write(first, sample, SAMPLES, NULL, NULL), WEFT_OK);
    assert_int_equal(weft_safetensors_write(second, reversed, SAMPLES, NULL, NULL), WEFT_OK);
    size_t a_bytes, b_bytes;
    unsigned char *a = read_bytes(first, &a_bytes), *b = read_bytes(second, &b_bytes);
    assert_int_equal(a_bytes, b_bytes);
    assert_memory_equal(a, b, a_bytes);
    uint64_t length;
    memcpy(&length, a, 8);
    assert_int_equal(length % 8, 0);
    free(a);
    free(b);
}

TEST(test_a_file_of_no_tensors_is_fine) {
    weft_safetensors *file;
    const char *path = path_of("none");
    assert_int_equal(weft_safetensors_write(path, NULL, 0, NULL, NULL), WEFT_OK);
    assert_int_equal(weft_safetensors_open(path, &file), WEFT_OK);
    assert_int_equal(weft_safetensors_count(file), 0);
    assert_null(weft_safetensors_find(file, "x"));
    assert_null(weft_safetensors_metadata(file, "x"));
    weft_safetensors_close(file);
}

/* IEEE's halves by hand: 1, -2, the largest, the smallest, 2^-14, -0, infinity. */
TEST(test_elements_are_read_as_numbers) {
    static const uint16_t halves[] = {0x3c00, 0xc000, 0x7bff, 0x0001, 0x0400, 0x8000, 0x7c00};
    static const double want[] = {1, -2, 65504, 0x1p-24, 0x1p-14, 0, INFINITY};
    double got[7];
    weft_safetensor t = {.dtype = WEFT_FILE_F16, .ndim = 1, .shape = {7}, .data = halves};
    weft_safetensor_values(&t, 0, 7, got);
    for (int i = 0; i < 7; i++)
        assert_true(got[i] == want[i]);
    assert_true(signbit(got[5]));
    t = (weft_safetensor){.dtype = WEFT_FILE_BF16, .data = bf16};
    weft_safetensor_values(&t, 1, 2, got);
    assert_true(got[0] == 2 && got[1] == 3);
    t = (weft_safetensor){.dtype = WEFT_FILE_I64, .data = i64};
    weft_safetensor_values(&t, 0, 2, got);
    assert_true(got[0] == -1 && got[1] == 0x1p40);
}

TEST(test_empty_tensors_and_loose_alignment_of_others_are_read) {
    /* A header of 110 bytes, so that nothing lies on a multiple of its size. */
    const char header[] = "{\"a\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[0,2]},"
                          "\"e\":{\"dtype\":\"F32\",\"shape\":[0,9],\"data_offsets\":[2,2]},"
                          "\"z\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[2,10]}} ";
    const char *path = path_of("loose");
    write_raw(path, header, sizeof header - 1, 10);
    weft_safetensors *file;
    assert_int_equal(weft_safetensors_open(path, &file), WEFT_OK);
    assert_int_equal(weft_safetensors_find(file, "e")->bytes, 0);
    double z;
    memcpy(&z, weft_safetensors_find(file, "z")->data, sizeof z);
    assert_true(z == 0);
    weft_safetensors_close(file);
}

/* Headers that are wrong, the number of data bytes beside them, and what the message must say. */
static const struct {
    const char *header;
    size_t data_bytes;
    const char *expect;
} bad_headers[] = {
    {"", 0, "does not begin with '{'"},
    {" {}", 0, "does not begin with '{'"},
    {"[]", 0, "does not begin with '{'"},
    {"{", 0, "header, byte"},
    {"{}x", 0, "header, byte"},
    {"{\"a\":1}", 0, "'a'"},
    {"{\"a\":{}}", 0, "'dtype' is missing"},
    {"{\"a\":{\"dtype\":7}}", 0, "'dtype' is missing"},
    {"{\"a\":{\"dtype\":\"Q7\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "'Q7'"},
    {"{\"a\":{\"dtype\":\"f32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "'f32'"},
    {"{\"h\":{\"dtype\":\"F8_E4M3\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4,
     "tensor 'h' is of type 'F8_E4M3', which is not supported"},
    {"{\"a\":{\"dtype\":\"F32\"}}", 4, "'shape' is missing"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":4,\"data_offsets\":[0,4]}}", 4, "'shape' is missing"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "a size in 'shape'"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, "a size in 'shape'"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[null],\"data_offsets\":[0,4]}}", 4, "a size in 'shape'"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4,
     "9 dimensions"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,4]}}", 4,
     "more bytes than can be counted"},
    {"{\"a\":{\"dtype\":\"F64\",\"shape\":[2305843009213693952],\"data_offsets\":[0,0]}}", 0,
     "more bytes than can be counted"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[0,9223372036854775807,9],\"data_offsets\":[0,4]}}", 4,
     "more bytes than can be counted"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,4]}}", 4,
     "header, byte"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "'data_offsets' is missing"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "'data_offsets'"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, "'data_offsets'"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[\"0\",4]}}", 4, "'data_offsets'"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4, "negative"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "wrong order"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 4, "cut short"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[9223372036854775803,"
     "9223372036854775807]}}",
     4, "cut short"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "ask for 8"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
     "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
     4, "overlap"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
     "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
     8, "tensor 'b': its data overlap"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8,
     "tensor 'a': there is a hole"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 7, "3 bytes at its end"},
    {"{}", 1, "1 bytes at its end"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
     "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
     8, "duplicate"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
     "duplicate"},
    {"{\"a\\u0000b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "header, byte"},
    {"{\"\xff\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "header, byte"},
    {"{\"__metadata__\":[]}", 0, "'__metadata__'"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "'__metadata__'"},
    {"{\"two\\nlines\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[1,5]}}", 5,
     "'two?lines': there is a hole"},
};

TEST(test_bad_headers_are_refused) {
    char path[512];
    snprintf(path, sizeof path, "%s", path_of("bad"));
    for (size_t i = 0; i < sizeof bad_headers / sizeof bad_headers[0]; i++) {
        const char *header = bad_headers[i].header;
        write_raw(path, header, strlen(header), bad_headers[i].data_bytes);
        refuse(path, bad_headers[i].expect);
    }
    write_raw(path, "{\"a\0b\":1}", 9, 0);
    refuse(path, "header, byte");
}

TEST(test_bad_lengths_are_refused) {
    char path[512];
    snprintf(path, sizeof path, "%s", path_of("length"));
    write_bytes(path, "", 0);
    refuse(path, "shorter than 8 bytes");
    write_bytes(path, "1234567", 7);
    refuse(path, "shorter than 8 bytes");
    static const struct {
        uint64_t length;
        const char *expect;
    } lengths[] = {
        {3, "header is longer than the file"},
        {100 * 1000 * 1000, "header is longer than the file"},
        {100 * 1000 * 1000 + 1, "longer than 100 MB"},
        {INT64_MAX, "longer than 100 MB"},
        {UINT64_MAX, "longer than 100 MB"},
        {UINT64_MAX - 7, "longer than 100 MB"},
    };
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        unsigned char raw[10] = {[8] = '{', [9] = '}'};
        memcpy(raw, &lengths[i].length, 8);
        write_bytes(path, raw, sizeof raw);
        refuse(path, lengths[i].expect);
    }
}

TEST(test_what_is_no_file_is_refused) {
    char path[512];
    snprintf(path, sizeof path, "%s", path_of("absent"));
    refuse(path, strerror(ENOENT));
    refuse(scratch_path("."), "it is a folder or a device");
    snprintf(path, sizeof path, "%s", path_of("pipe"));
    assert_int_equal(mkfifo(path, 0600), 0);
    refuse(path, "it is a folder or a device");
    refuse("/dev/zero", "it is a folder or a device");
}

TEST(test_deep_nesting_is_refused) {
    enum { DEPTH = 200000 };
    char *header = malloc(DEPTH + 8);
    size_t n = (size_t)sprintf(header, "{\"a\":");
    memset(header + n, '[', DEPTH - n);
    const char *path = path_of("deep");
    write_raw(path, header, DEPTH, 0);
    free(header);
    refuse(path, "header, byte");
}

/* Reads every byte that an open file hands out. */
static unsigned touch_all(const weft_safetensors *file) {
    unsigned sum = 0;
    for (int64_t i = 0; i < weft_safetensors_count(file); i++) {
        const weft_safetensor *t = weft_safetensors_at(file, i);
        sum += (unsigned)strlen(t->name) + (unsigned)t->ndim;
        for (int64_t k = 0; k < t->bytes; k++)
            sum += ((const unsigned char *)t->data)[k];
        assert_ptr_equal(weft_safetensors_find(file, t->name), t);
    }
    return sum;
}

static void damage(unsigned char *data, size_t *bytes, uint32_t round) {
    weft_random4 r = weft_philox(11, round, 0, 0, 0), q = weft_philox(12, round, 0, 0, 0);
    if (*bytes < 16) return;
    size_t at = r.word[0] % *bytes;
    switch (r.word[1] % 6) {
    case 0:
        data[at] ^= (unsigned char)(1u << (r.word[2] % 8));
        break;
    case 1:
        data[at] = (unsigned char)r.word[2];
        break;
    case 2:
        *bytes = at;
        break;
    case 3: /* digits and signs in the header */
        at = 8 + r.word[0] % (*bytes - 8);
        data[at] = (unsigned char)"0123456789-e.[]{},:\" \\u"[r.word[2] % 23];
        break;
    case 4: /* a piece over another */
        for (size_t k = 0; k < q.word[1] % 40; k++)
            data[(at + k) % *bytes] = data[(q.word[0] + k) % *bytes];
        break;
    default: /* the length */
        data[r.word[0] % 8] = (unsigned char)r.word[2];
        break;
    }
}

TEST(test_damaged_files_never_crash) {
    char path[512];
    snprintf(path, sizeof path, "%s", path_of("damaged"));
    assert_int_equal(weft_safetensors_write(path, sample, SAMPLES, metadata, NULL), WEFT_OK);
    size_t whole_bytes;
    unsigned char *whole = read_bytes(path, &whole_bytes);
    unsigned char *data = malloc(whole_bytes);
    /* Written over in place: a file that is made anew each time waits for the disk. */
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    int read = 0, refused = 0;
    unsigned sum = 0;
    for (uint32_t round = 0; round < 10000; round++) {
        size_t bytes = whole_bytes;
        memcpy(data, whole, whole_bytes);
        for (uint32_t k = 0; k <= round % 3; k++)
            damage(data, &bytes, 3 * round + k);
        assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
        assert_int_equal(pwrite(fd, data, bytes, 0), (ssize_t)bytes);
        weft_safetensors *file;
        if (weft_safetensors_open(path, &file) == WEFT_OK) {
            sum += touch_all(file);
            read++;
        } else {
            check_message(path);
            refused++;
        }
        weft_safetensors_close(file);
    }
    close(fd);
    free(data);
    free(whole);
    print_message("10000 damaged files: %d refused, %d read (sum %u)\n", refused, read, sum);
    assert_true(refused > 5000 && read > 100);
}

static int files_in_folder(void) {
    int n = 0;
    DIR *dir = opendir(scratch_path("."));
    assert_non_null(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

TEST(test_a_failed_write_leaves_the_old_file_alone) {
    char path[512];
    snprintf(path, sizeof path, "%s", path_of("kept"));
    assert_int_equal(weft_safetensors_write(path, sample, SAMPLES, NULL, NULL), WEFT_OK);
    size_t before_bytes, after_bytes;
    unsigned char *before = read_bytes(path, &before_bytes);
    int files = files_in_folder();
    weft_safetensor bad[2] = {sample[0], sample[0]};
    const struct {
        weft_safetensor tensor;
        const char *expect;
    } wrongs[] = {
        {sample[0], "two tensors have that name"},
        {{.name = "__metadata__", .ndim = 0, .data = f64}, "keeps that name"},
        {{.name = "", .ndim = 0, .data = f64}, "keeps that name"},
        {{.name = "x", .ndim = 9, .data = f64}, "dimensions"},
        {{.name = "x", .ndim = 1, .shape = {-1}, .data = f64}, "negative or too large"},
        {{.name = "x", .ndim = 2, .shape = {1LL << 40, 1LL << 40}, .data = f64}, "too large"},
        {{.name = "x", .ndim = 1, .shape = {1}}, "it has no data"},
        {{.name = "x\xff", .ndim = 0, .data = f64}, "UTF-8"},
    };
    for (size_t i = 0; i < sizeof wrongs / sizeof wrongs[0]; i++) {
        bad[1] = wrongs[i].tensor;
        assert_int_equal(weft_safetensors_write(path, bad, 2, NULL, NULL), WEFT_EINPUT);
        check_message(wrongs[i].expect);
    }
    unsigned char *after = read_bytes(path, &after_bytes);
    assert_int_equal(before_bytes, after_bytes);
    assert_memory_equal(before, after, before_bytes);
    assert_int_equal(files_in_folder(), files);
    free(before);
    free(after);
}

TEST(test_a_write_that_cannot_end_removes_its_traces) {
    int files = files_in_folder();
    assert_int_equal(weft_safetensors_write(scratch_path("."), sample, SAMPLES, NULL, NULL),
                     WEFT_EIO);
    check_message("cannot be written");
    assert_int_equal(weft_safetensors_write(path_of("no/such/folder"), sample, 1, NULL, NULL),
                     WEFT_EIO);
    check_message(strerror(ENOENT));
    assert_int_equal(files_in_folder(), files);
    char long_name[5000];
    memset(long_name, 'x', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    assert_int_equal(weft_safetensors_write(long_name, sample, 1, NULL, NULL), WEFT_EINPUT);
}

RUN_TESTS(scratch_setup, scratch_teardown)
