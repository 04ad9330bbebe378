/* The regular expression of a tokenizer's Split, a zero byte, and a text to be cut by it. */
#include "fuzz/tokenizer_case.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char form[] = "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"@\"},\"merges\":[]},"
                           "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
                           "{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":"
                           "%}},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                           "\"use_regex\":false}]}}";

bool fuzz_regex(const uint8_t *data, size_t size) {
    fuzz_bytes in = {data, size}, regex = fuzz_until_zero(&in);
    /* What is no UTF-8 could not be in a JSON file. */
    json_t *value = json_stringn((const char *)regex.data, regex.size);
    char *quoted = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
    json_decref(value);
    if (!quoted) return false;
    size_t bytes, n = strlen(quoted);
    char *text = tokenizer_case_text((fuzz_bytes){(const uint8_t *)form, sizeof form - 1}, &bytes);
    char *at = strstr(text, ":%}"), *whole = malloc(bytes + n);
    if (!whole) exit(2);
    size_t before = (size_t)(at - text) + 1;
    memcpy(whole, text, before);
    memcpy(whole + before, quoted, n);
    memcpy(whole + before + n, text + before + 1, bytes - before - 1);
    bool taken = tokenizer_case_check(fuzz_file("tokenizer.json", whole, bytes + n - 1), in);
    free(whole);
    free(text);
    free(quoted);
    return taken;
}
