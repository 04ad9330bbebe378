/* From logits to a token. A draw is a pure function of the logits, the sampling parameters, the seed
 * and the token's number: there is no state beside the list of tokens so far. */
#pragma once

#include "base/error.h"
#include "core/draw.h"

enum { WEFT_TOP_MAX = 20 };

typedef struct {
    double temperature; /* 0: the likeliest token; bit-equal ones: the lowest */
    int64_t top_k;      /* of the k likeliest; 0: of all */
    double top_p; /* of the fewest likeliest whose probabilities sum to this or more; 1: all */
    double min_p; /* of those at least this many times as likely as the likeliest; 0: all */
    double repetition_penalty; /* of tokens that are there already: logits above 0 are divided by
                                  it, others multiplied; 1: none */
    uint64_t seed;
    uint32_t sample; /* several samples of one seed: their numbers */
    int64_t max_tokens;
    int32_t end_token;                 /* ends the text; -1: none */
    const struct weft_tokenizer *ends; /* its tokens that end generation do, too; NULL: none */
    bool token_only;  /* no logprob is needed: it may be 0, and then less comes back from a GPU */
    int top_logprobs; /* alternatives to report for each token, WEFT_TOP_MAX at most */
    bool
        prompt_logprobs; /* the prompt's tokens are told before those that are made, each as if it had been
                             sampled, the first without a logprob; max_tokens may then be 0 */
} weft_sampling;

/* What is used where nothing is said: temperature 1, all tokens, no penalty, 256 tokens. */
weft_sampling weft_sampling_default(void);
/* Refuses what is out of range, by the parameter's name. */
weft_status weft_sampling_check(const weft_sampling *s);

typedef struct {
    int32_t token;
    float logprob; /* natural logarithm of its probability under the model, before temperature and
                      the rules that leave tokens out */
    int n_top;
    int32_t top[WEFT_TOP_MAX]; /* the likeliest, descending */
    float top_logprob[WEFT_TOP_MAX];
} weft_sampled;

/* How token `number` (from 0) of a text is drawn. `seen`: the tokens so far, prompt included, for the
 * penalty; it is not copied. */
weft_draw weft_sampling_draw(const weft_sampling *s, uint32_t number, const int32_t *seen,
                             int64_t n_seen);
/* Bytes of scratch for the functions below. */
size_t weft_sample_room(int64_t vocab);
/* What there is to tell of a token with these logits; `top`: alternatives. */
void weft_sample_tell(const float *logits, int64_t vocab, int32_t token, int top, void *scratch,
                      weft_sampled *out);
/* The token that is drawn; of logits that are not numbers any. */
int32_t weft_draw_token(const float *logits, int64_t vocab, const weft_draw *d, void *scratch);
/* Both: token `number` of a text, and what there is to tell of it. Where a logit is not a number, neither is
 * out->logprob. */
void weft_sample(const float *logits, int64_t vocab, const weft_sampling *s, uint32_t number,
                 const int32_t *seen, int64_t n_seen, void *scratch, weft_sampled *out);
