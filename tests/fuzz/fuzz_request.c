/* The body of an HTTP request to the server: a byte that chooses the endpoint, a chat's template, a zero
 * byte, the body. */
#include "data/tokenizer.h"
#include "fuzz/fuzz.h"
#include "serve/request.h"

#include <stdlib.h>
#include <string.h>

enum { TEXTS = 16 };

static void check_prompts(const weft_request *r) {
    for (int64_t i = 0; i < r->n_prompts; i++) {
        const weft_request_prompt *p = &r->prompts[i];
        if (p->text)
            fuzz_touch(p->text, p->bytes);
        else
            fuzz_touch(p->tokens, (size_t)p->n_tokens * sizeof *p->tokens);
    }
    for (int64_t i = 0; i < r->n_messages; i++) {
        fuzz_touch(r->messages[i].role, strlen(r->messages[i].role));
        fuzz_touch(r->messages[i].content, r->messages[i].bytes);
    }
}

static void check_request(const weft_request *r) {
    bool chat = r->endpoint == WEFT_CHAT;
    FUZZ_PROMISE(chat ? r->n_messages > 0 : r->n_prompts > 0, "a request has a prompt");
    FUZZ_PROMISE(r->n >= 1 && (chat ? r->n : r->n * r->n_prompts) <= TEXTS,
                 "there are no more texts than the server allows");
    FUZZ_PROMISE(weft_sampling_check(&r->sampling) == WEFT_OK, "what is drawn by is in its range");
    FUZZ_PROMISE(r->sampling.max_tokens <= WEFT_REQUEST_TOKENS,
                 "there are no more tokens than a request may ask for");
    FUZZ_PROMISE(r->n_stops >= 0 && r->n_stops <= WEFT_REQUEST_STOPS, "stops have room");
    for (int i = 0; i < r->n_stops; i++)
        FUZZ_PROMISE(*r->stops[i] != 0, "a stop is a text");
    check_prompts(r);
}

static void check_template(const char *text, const weft_request *r) {
    static weft_tokenizer *t;
    weft_template *m;
    weft_encoder *e;
    int32_t *tokens;
    int64_t count;
    if (!t && weft_tokenizer_open("bytes", &t) != WEFT_OK) exit(2);
    if (weft_template_open(text, t, &m) != WEFT_OK) return;
    if (weft_encoder_open(t, &e) != WEFT_OK) exit(2);
    if (weft_template_encode(m, e, r->messages, r->n_messages, &tokens, &count) == WEFT_OK) {
        fuzz_touch(tokens, (size_t)count * sizeof *tokens);
        free(tokens);
    }
    weft_encoder_close(e);
    weft_template_close(m);
}

static void check_refusal(const weft_refusal *why) {
    FUZZ_PROMISE(why->status >= 400 && why->status < 600, "a refusal has a status");
    char *text = weft_refusal_json(why);
    FUZZ_PROMISE(text != NULL, "a refusal has its JSON");
    json_t *object = json_loads(text, 0, NULL);
    FUZZ_PROMISE(json_is_object(object), "a refusal is JSON");
    json_decref(object);
    free(text);
}

bool fuzz_request(const uint8_t *data, size_t size) {
    fuzz_bytes in = {data, size};
    weft_endpoint endpoint = fuzz_byte(&in) & 1 ? WEFT_CHAT : WEFT_COMPLETIONS;
    char *template = fuzz_text(fuzz_until_zero(&in));
    weft_request r;
    weft_refusal why = {0};
    bool taken = weft_request_parse((const char *)in.data, in.size, endpoint, TEXTS, &r, &why);
    if (taken) {
        check_request(&r);
        if (endpoint == WEFT_CHAT) check_template(template, &r);
        weft_request_free(&r);
    } else {
        check_refusal(&why);
    }
    free(template);
    return taken;
}
