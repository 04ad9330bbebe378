/* A mirror over a device whose memory is a block of the test's own: what one side wrote is what the
 * other reads, and nothing is copied that is not newer. */
#include "core/mirror.h"
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

enum { BYTES = 8 };

static int uploads, downloads, blocks;
static bool full, lost;

static void *device_alloc(int64_t bytes) {
    if (full) return NULL;
    blocks++;
    return calloc(1, (size_t)bytes);
}

static void device_release(void *memory, int64_t bytes) {
    (void)bytes;
    blocks--;
    free(memory);
}

static weft_status device_upload(void *to, const void *from, int64_t bytes) {
    if (lost) return weft_fail(WEFT_EIO, "device: lost");
    uploads++;
    memcpy(to, from, (size_t)bytes);
    return WEFT_OK;
}

static weft_status device_download(void *to, const void *from, int64_t bytes) {
    if (lost) return weft_fail(WEFT_EIO, "device: lost");
    downloads++;
    memcpy(to, from, (size_t)bytes);
    return WEFT_OK;
}

static const weft_backend device = {.name = "device",
                                    .alloc = device_alloc,
                                    .release = device_release,
                                    .upload = device_upload,
                                    .download = device_download,
                                    .remote = true};
static const weft_backend other = {
    .name = "other", .alloc = device_alloc, .release = device_release, .remote = true};
static const weft_backend here = {.name = "here"};

static int begin(void **state) {
    (void)state;
    uploads = downloads = blocks = 0;
    full = lost = false;
    return 0;
}

static weft_mirror *mirror_of(char host[BYTES]) {
    weft_mirror *m;
    assert_int_equal(weft_mirror_create(host, BYTES, &m), WEFT_OK);
    return m;
}

TEST_WITH(test_each_side_reads_what_the_other_wrote, begin, NULL) {
    char host[BYTES] = "abcdefg", out[3];
    weft_mirror *m = mirror_of(host);
    assert_int_equal(weft_mirror_place(m, &device), WEFT_OK);
    assert_int_equal(weft_mirror_use(m, &device), WEFT_OK);
    char *there = weft_mirror_at(m, &device, host);
    assert_string_equal(there, "abcdefg");
    assert_ptr_equal(weft_mirror_at(m, &device, host + 2), there + 2);
    memcpy(there, "ABCDEFG", BYTES);
    weft_mirror_wrote(m, &device);
    assert_int_equal(weft_mirror_read(m, host + 2, 3, out), WEFT_OK);
    assert_memory_equal(out, "CDE", 3);
    assert_string_equal(host, "abcdefg"); /* a look at a part brings nothing over */
    assert_int_equal(weft_mirror_use(m, NULL), WEFT_OK);
    assert_string_equal(host, "ABCDEFG");
    host[0] = 'x';
    weft_mirror_wrote(m, NULL);
    assert_int_equal(weft_mirror_writes(m), 1);
    assert_int_equal(weft_mirror_use(m, &device), WEFT_OK);
    assert_string_equal(there, "xBCDEFG");
    weft_mirror_destroy(m);
    assert_int_equal(blocks, 0);
}

TEST_WITH(test_only_what_is_newer_is_copied, begin, NULL) {
    char host[BYTES] = "abcdefg";
    weft_mirror *m = mirror_of(host);
    assert_int_equal(weft_mirror_place(m, &device), WEFT_OK);
    assert_int_equal(weft_mirror_use(m, NULL), WEFT_OK);
    assert_int_equal(weft_mirror_use(m, &device), WEFT_OK);
    assert_int_equal(weft_mirror_use(m, &device), WEFT_OK);
    assert_int_equal(weft_mirror_use(m, NULL), WEFT_OK);
    assert_int_equal(uploads, 1);
    assert_int_equal(downloads, 0);
    weft_mirror_destroy(m);
}

TEST_WITH(test_a_copy_that_failed_is_not_called_equal, begin, NULL) {
    char host[BYTES] = "abcdefg", out[3];
    weft_mirror *m = mirror_of(host);
    assert_int_equal(weft_mirror_place(m, &device), WEFT_OK);
    lost = true;
    assert_int_equal(weft_mirror_use(m, &device), WEFT_EIO);
    assert_int_equal(weft_mirror_use(m, &device), WEFT_EIO);
    lost = false;
    assert_int_equal(weft_mirror_use(m, &device), WEFT_OK);
    memcpy(weft_mirror_at(m, &device, host), "ABCDEFG", BYTES);
    weft_mirror_wrote(m, &device);
    lost = true;
    assert_int_equal(weft_mirror_read(m, host, 3, out), WEFT_EIO);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(weft_mirror_use(m, NULL), WEFT_EIO);
        assert_string_equal(weft_error_message(), "device: lost");
    }
    lost = false;
    assert_int_equal(weft_mirror_use(m, NULL), WEFT_OK);
    assert_string_equal(host, "ABCDEFG");
    weft_mirror_destroy(m);
}

TEST_WITH(test_a_host_backend_has_no_copy, begin, NULL) {
    char host[BYTES] = "abcdefg";
    weft_mirror *m = mirror_of(host);
    assert_int_equal(weft_mirror_place(m, &here), WEFT_OK);
    assert_int_equal(weft_mirror_use(m, &here), WEFT_OK);
    assert_ptr_equal(weft_mirror_at(m, &here, host), host);
    assert_null(weft_mirror_at(m, &device, NULL));
    assert_int_equal(blocks + uploads, 0);
    weft_mirror_destroy(m);
}

TEST_WITH(test_a_mirror_has_one_copy_and_says_why_it_has_none, begin, NULL) {
    char host[BYTES] = "abcdefg";
    weft_mirror *m = mirror_of(host);
    full = true;
    assert_int_equal(weft_mirror_place(m, &device), WEFT_ENOMEM);
    assert_non_null(strstr(weft_error_message(), "device: no memory"));
    full = false;
    assert_int_equal(weft_mirror_place(m, &device), WEFT_OK);
    assert_int_equal(weft_mirror_place(m, &device), WEFT_OK);
    assert_int_equal(weft_mirror_place(m, &other), WEFT_EINPUT);
    assert_non_null(strstr(weft_error_message(), "on device already"));
    assert_int_equal(blocks, 1);
    weft_mirror_destroy(m);
}

RUN_TESTS(NULL, NULL)
