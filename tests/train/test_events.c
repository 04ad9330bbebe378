/* Event files: their framing, byte by byte, and, where TensorBoard is importable, what its own
 * reader makes of them. */
#include "base/crc32c.h"
#include "support/command.h"
#include "support/test.h"
#include "train/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TEST(test_crc32c_is_castagnolis) {
    /* The check value of the algorithm's catalogue, and RFC 3720's 32 bytes of 0 and of 1 bits. */
    static const char digits[] = "123456789";
    unsigned char bytes[32] = {0};
    assert_int_equal(weft_crc32c(0, digits, 9), 0xE3069283u);
    assert_int_equal(weft_crc32c(0, bytes, 32), 0x8A9136AAu);
    memset(bytes, 255, 32);
    assert_int_equal(weft_crc32c(0, bytes, 32), 0x62A8AB43u);
    for (size_t cut = 0; cut <= 9; cut++)
        assert_int_equal(weft_crc32c(weft_crc32c(0, digits, cut), digits + cut, 9 - cut),
                         0xE3069283u);
}

static void write_files(void) {
    weft_events e;
    expect_ok(weft_events_open(scratch_path("."), 0, &e));
    for (int step = 10; step <= 40; step += 10)
        expect_ok(weft_events_add(&e, step, 1000.0 + step,
                                  (weft_scalar[]){{"loss/train", step / 8.0}, {"lr", 0.5}}, 2));
    fclose(e.file);
    expect_ok(weft_events_open(scratch_path("."), 20, &e)); /* resumed: 30 and 40 are done again */
    expect_ok(weft_events_add(&e, 30, 1050.0, (weft_scalar[]){{"loss/train", 99.0}}, 1));
    fclose(e.file);
}

TEST(test_records_are_framed) {
    size_t bytes, at = 0;
    int records = 0;
    write_files();
    char *file = file_read(scratch_path("events.out.tfevents.0000000000.weft"), &bytes);
    /* brain.Event:2 at wall time and step 0, as the first record's payload. */
    assert_memory_equal(file + 12 + 1 + 8 + 2,
                        "\x1a\x0d"
                        "brain.Event:2",
                        15);
    while (at < bytes) {
        uint64_t length;
        uint32_t masked;
        memcpy(&length, file + at, 8);
        memcpy(&masked, file + at + 8, 4);
        uint32_t crc = weft_crc32c(0, file + at, 8);
        assert_int_equal(masked, (crc >> 15 | crc << 17) + 0xA282EAD8u);
        assert_true(at + 16 + length <= bytes);
        memcpy(&masked, file + at + 12 + length, 4);
        crc = weft_crc32c(0, file + at + 12, length);
        assert_int_equal(masked, (crc >> 15 | crc << 17) + 0xA282EAD8u);
        at += 16 + length;
        records++;
    }
    assert_int_equal(at, bytes);
    assert_int_equal(records, 5);
    free(file);
}

TEST(test_tensorboard_reads_them) {
    char text[4096];
    const char *python = getenv("PYTHON");
    if (!python) python = "python3";
    const char *command = format_text("%s -c 'import tensorboard' 2>/dev/null", python);
    if (system(command) != 0) {
        printf("tensorboard is not importable by %s\n", python);
        skip();
    }
    write_files();
    command =
        format_text("%s tests/train/read_events.py %s 2>/dev/null", python, scratch_path("."));
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t n = fread(text, 1, sizeof text - 1, pipe);
    text[n] = 0;
    assert_int_equal(pclose(pipe), 0);
    assert_string_equal(text, "loss/train 10 1.25\nloss/train 20 2.5\nloss/train 30 99.0\n"
                              "lr 10 0.5\nlr 20 0.5\n");
}

TEST(test_folder_that_is_not_there_is_an_error) {
    weft_events e;
    assert_int_equal(weft_events_open("/nowhere", 0, &e), WEFT_EIO);
    assert_null(e.file);
}

RUN_TESTS(scratch_setup, scratch_teardown)
