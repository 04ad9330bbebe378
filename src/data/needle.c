/* A needle in a haystack: a pass key somewhere in a text, and a question for it at the end.
 *
 * The sequence ends with the key's last digit as its last target, so that a model which has read it all
 * but the answer's first byte can tell the answer. */
#include "data/tasks.h"

#include "data/corpus.h"

#include <stdio.h>
#include <string.h>

int weft_needle_write(int32_t key, char needle[WEFT_NEEDLE_ROOM]) {
    return snprintf(needle, WEFT_NEEDLE_ROOM,
                    "\nThe pass key is %05d. Remember it. %05d is the pass key.\n", (int)key,
                    (int)key);
}

const char weft_needle_question[] = "\nWhat is the pass key? The pass key is";

int weft_needle_answer(int32_t key, char answer[WEFT_NEEDLE_ROOM]) {
    return snprintf(answer, WEFT_NEEDLE_ROOM, " %05d", (int)key);
}

/* tokens and targets are a text of time + 1 bytes, one apart; writes a piece of it at `at`. */
static void put(const char *piece, int64_t bytes, int64_t at, int64_t time, int32_t *tokens,
                int32_t *targets) {
    for (int64_t i = 0; i < bytes; i++) {
        if (at + i < time) tokens[at + i] = (unsigned char)piece[i];
        if (at + i > 0) targets[at + i - 1] = (unsigned char)piece[i];
    }
}

weft_status weft_needle_fill(const weft_sequence_place *p, int64_t time, int32_t *tokens,
                             int32_t *targets, uint8_t *scored) {
    const uint32_t sites[2] = {weft_random_site("data.needle.train"),
                               weft_random_site("data.needle.val")};
    weft_random_stream random = weft_random_stream_at(p, sites, 0);
    char needle[WEFT_NEEDLE_ROOM], answer[WEFT_NEEDLE_ROOM];
    int32_t key = (int32_t)weft_random_stream_below(&random, WEFT_NEEDLE_KEYS);
    int64_t long_needle = weft_needle_write(key, needle);
    int64_t long_answer = weft_needle_answer(key, answer);
    int64_t long_question = (int64_t)strlen(weft_needle_question);
    int64_t room = time + 1 - long_needle - long_question - long_answer;
    if (time < WEFT_NEEDLE_TIME)
        return weft_fail(
            WEFT_EINPUT,
            "DATASET needle: a sequence has a key, a question and its answer, at least "
            "%d bytes; CONTEXT gives %lld",
            WEFT_NEEDLE_TIME, (long long)time);
    weft_corpus_fill(p, time, tokens, targets);
    int64_t at = weft_random_stream_below(&random, (uint32_t)room + 1), end = time + 1;
    put(needle, long_needle, at, time, tokens, targets);
    put(weft_needle_question, long_question, end - long_answer - long_question, time, tokens,
        targets);
    put(answer, long_answer, end - long_answer, time, tokens, targets);
    /* The blank before the digits is no part of what must be remembered. */
    for (int64_t t = 0; scored && t < time; t++)
        scored[t] = t >= time - (long_answer - 1);
    return WEFT_OK;
}
