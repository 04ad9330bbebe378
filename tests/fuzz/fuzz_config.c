/* A config's text: as a file, and a line at a time as overrides of the command line. */
#include "config/config.h"
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

/* Every value as text, set again, is the same value; and so is all of it through JSON. */
static void check_written_reads_back(const weft_config *c) {
    weft_config again, through;
    int count;
    const weft_option *options = weft_options(&count);
    weft_config_defaults(&again);
    weft_config_defaults(&through);
    json_t *object = weft_config_to_json(c);
    /* A text that is no UTF-8 has no JSON. */
    if (object)
        FUZZ_PROMISE(weft_config_from_json(&through, object, "json") == WEFT_OK,
                     "a config's JSON is read");
    for (int i = 0; i < count; i++) {
        char text[WEFT_TEXT_MAX], other[WEFT_TEXT_MAX];
        weft_config_format(c, &options[i], text, sizeof text);
        size_t length = strlen(text);
        if (object) {
            weft_config_format(&through, &options[i], other, sizeof other);
            FUZZ_PROMISE(strcmp(text, other) == 0, "JSON keeps every value");
        }
        /* Quotes around a value are taken off, so such a text is another one. */
        if (length >= 2 && text[0] == '"' && text[length - 1] == '"') continue;
        FUZZ_PROMISE(weft_config_set(&again, options[i].key, text, "again") == WEFT_OK,
                     "a value that was read can be set");
        weft_config_format(&again, &options[i], other, sizeof other);
        FUZZ_PROMISE(strcmp(text, other) == 0, "a value as text is the same value");
    }
    json_decref(object);
}

bool fuzz_config(const uint8_t *data, size_t size) {
    weft_config c;
    weft_config_defaults(&c);
    bool taken = weft_config_read(&c, fuzz_file("config", data, size)) == WEFT_OK;
    if (taken) {
        weft_config_check(&c, "config");
        weft_config_advise(&(const weft_config *){&c}, 1, "config");
        check_written_reads_back(&c);
    }
    char *text = fuzz_text((fuzz_bytes){data, size});
    weft_config_defaults(&c);
    for (char *line = text, *end; line; line = end ? end + 1 : NULL) {
        end = strchr(line, '\n');
        if (end) *end = 0;
        taken = weft_config_override(&c, line, "-o") == WEFT_OK || taken;
    }
    if (fuzz_way(data, size, 2) != 1) check_written_reads_back(&c);
    free(text);
    return taken;
}
