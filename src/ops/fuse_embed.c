/* The gradient of a table that embeds tokens and classifies them. The classifier's is there first;
 * embed_back adds its rows to it, so that only rows of tokens that occur are touched, in place of a
 * table of its own, mostly zeros, and a sum of two tables. */
#include "ops/embedding.h"
#include "ops/fuse_internal.h"
#include "ops/list.h"

bool weft_fuse_embed_addend(weft_rewrite *r, const weft_match *m) {
    weft_node *add = m->reader, *back = m->maker;
    weft_tensor *addend = add->in[1 - m->input], *table = add->in[m->input];
    weft_dtype dtype = add->out[0]->dtype;
    if (!weft_fuse_is_plain_sum(add) || back->in[WEFT_EMBED_BACK_ADDEND]) return false;
    if (m->output != 0 || table->dtype != dtype || addend->dtype != dtype) return false;
    if (!weft_rewrite_is_made_before(addend, back)) return false;
    weft_rewrite_read(r, back, WEFT_EMBED_BACK_ADDEND, addend);
    weft_fuse_replace(r, back, 0, add, false);
    return true;
}
