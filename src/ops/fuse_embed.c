/* The gradient of a table that embeds tokens and classifies them. The classifier's is there first;
 * embed_back adds its rows to it, so that only rows of tokens that occur are touched, in place of a
 * table of its own, mostly zeros, and a sum of two tables. */
#include "ops/embedding.h"
#include "ops/fuse_internal.h"
#include "ops/list.h"

/* The embed_back that makes `t` for `add` alone and adds nothing yet; NULL: it is none. */
static weft_node *find_embed_back(const weft_fuser *f, weft_tensor *t, const weft_node *add) {
    const weft_tensor *root = weft_tensor_root(t);
    weft_node *n = root->producer;
    if (!n || n->op != &weft_op_embed_back || n->in[WEFT_EMBED_BACK_ADDEND]) return NULL;
    if (!weft_fuser_reads_once(f, root) || root->dtype != add->out[0]->dtype) return NULL;
    return weft_fuser_is_open(f, n) && weft_fuser_is_quiet(f, n, add) ? n : NULL;
}

bool weft_fuse_embed_back(weft_fuser *f, weft_node *add) {
    for (int i = 0; i < 2; i++) {
        weft_tensor *addend = add->in[1 - i];
        weft_node *back = find_embed_back(f, add->in[i], add);
        if (!back || addend->dtype != add->out[0]->dtype ||
            !weft_fuser_is_made_before(addend, back))
            continue;
        back->in[WEFT_EMBED_BACK_ADDEND] = addend;
        weft_fuser_replace_reader(f, back, add, false);
        return true;
    }
    return false;
}
