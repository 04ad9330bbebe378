/* Pages. Sealed ones are in a hash table by (page before, kind, tokens), chained through the pages
 * themselves; those that nobody holds are in a list, longest unused first. */
#include "generate/generator_internal.h"

typedef struct {
    int32_t holders;
    bool sealed;
    int32_t before, kind;
    int32_t tokens[WEFT_PAGE_TOKENS];
    int32_t followers;    /* sealed pages behind it */
    int32_t next;         /* in its chain of the hash table; -1 ends */
    int32_t older, newer; /* in the list of kept pages; -1 ends */
    void *state;
} page_entry;

struct weft_pages {
    page_entry *entries;
    int32_t *free_pages, *chains;
    int64_t count, n_free, n_kept;
    int32_t oldest, newest;
};

weft_status weft_pages_create(int64_t count, weft_pages **out) {
    *out = NULL;
    if (count < 1 || count > INT32_MAX)
        return WEFT_BAD_INPUT("pages: %lld of them", (long long)count);
    WEFT_NEW(weft_pages, p, weft_pages_destroy, "pages: no memory for a list of %lld",
             (long long)count);
    WEFT_ROOM_AT(p->entries, count, "pages: no memory for a list of %lld", (long long)count);
    WEFT_ROOM_AT(p->free_pages, count, "pages: no memory for a list of %lld", (long long)count);
    WEFT_ROOM_AT(p->chains, count, "pages: no memory for a list of %lld", (long long)count);
    p->count = p->n_free = count;
    p->oldest = p->newest = -1;
    for (int64_t i = 0; i < count; i++) {
        p->free_pages[i] = (int32_t)(count - 1 - i);
        p->chains[i] = -1;
    }
    return weft_hand(&p, out);
}

void weft_pages_destroy(weft_pages *p) {
    if (!p) return;
    for (int64_t i = 0; p->entries && i < p->count; i++)
        free(p->entries[i].state);
    WEFT_FREE(p->entries, p->free_pages, p->chains, p);
}

static int32_t *chain_of(const weft_pages *p, int32_t before, const int32_t *tokens, int kind) {
    uint64_t hash = UINT64_C(14695981039346656037);
    hash = (hash ^ (uint32_t)before) * UINT64_C(1099511628211);
    hash = (hash ^ (uint32_t)kind) * UINT64_C(1099511628211);
    for (int i = 0; i < WEFT_PAGE_TOKENS; i++)
        hash = (hash ^ (uint32_t)tokens[i]) * UINT64_C(1099511628211);
    return p->chains + (hash ^ hash >> 32) % (uint64_t)p->count;
}

static void unlink_kept(weft_pages *p, int32_t page) {
    page_entry *e = p->entries + page;
    *(e->older < 0 ? &p->oldest : &p->entries[e->older].newer) = e->newer;
    *(e->newer < 0 ? &p->newest : &p->entries[e->newer].older) = e->older;
    p->n_kept--;
}

int32_t weft_pages_take(weft_pages *p) {
    int32_t page = -1;
    if (p->n_free > 0) {
        page = p->free_pages[--p->n_free];
    } else {
        for (int32_t at = p->oldest; at >= 0 && page < 0; at = p->entries[at].newer)
            if (p->entries[at].followers == 0) page = at;
        if (page < 0) return -1;
        /* Takes a page that nobody holds out of the hash table and the list. */
        page_entry *e = p->entries + page;
        int32_t *at = chain_of(p, e->before, e->tokens, e->kind);
        while (*at != page)
            at = &p->entries[*at].next;
        *at = e->next;
        if (e->before >= 0) p->entries[e->before].followers--;
        unlink_kept(p, page);
        free(e->state);
        e->state = NULL;
        e->sealed = false;
    }
    p->entries[page].holders = 1;
    return page;
}

void weft_pages_hold(weft_pages *p, int32_t page) {
    page_entry *e = p->entries + page;
    if (e->holders++ == 0) unlink_kept(p, page);
}

void weft_pages_release(weft_pages *p, int32_t page) {
    page_entry *e = p->entries + page;
    if (--e->holders > 0) return;
    if (!e->sealed) {
        p->free_pages[p->n_free++] = page;
        return;
    }
    e->older = p->newest;
    e->newer = -1;
    *(p->newest < 0 ? &p->oldest : &p->entries[p->newest].newer) = page;
    p->newest = page;
    p->n_kept++;
}

int32_t weft_pages_find(const weft_pages *p, int32_t before, const int32_t *tokens, int kind) {
    int32_t page = *chain_of(p, before, tokens, kind);
    for (; page >= 0; page = p->entries[page].next) {
        const page_entry *e = p->entries + page;
        if (e->before == before && e->kind == kind &&
            memcmp(e->tokens, tokens, sizeof e->tokens) == 0)
            break;
    }
    return page;
}

weft_status weft_pages_seal(weft_pages *p, int32_t page, int32_t before, const int32_t *tokens,
                            int kind, const void *state, size_t bytes) {
    page_entry *e = p->entries + page;
    /* Behind a page that is not sealed itself nothing could ever be found. */
    if (e->sealed || (before >= 0 && !p->entries[before].sealed)) return WEFT_OK;
    if (weft_pages_find(p, before, tokens, kind) >= 0) return WEFT_OK;
    if (state) {
        e->state = malloc(bytes);
        if (!e->state) return weft_fail(WEFT_ENOMEM, "pages: no memory for a sequence's state");
        memcpy(e->state, state, bytes);
    }
    e->before = before;
    e->kind = kind;
    memcpy(e->tokens, tokens, sizeof e->tokens);
    e->followers = 0;
    if (before >= 0) p->entries[before].followers++;
    int32_t *chain = chain_of(p, before, tokens, kind);
    e->next = *chain;
    *chain = page;
    e->sealed = true;
    return WEFT_OK;
}

const void *weft_pages_state(const weft_pages *p, int32_t page) {
    return p->entries[page].state;
}

weft_pages_counts weft_pages_count(const weft_pages *p) {
    return (weft_pages_counts){p->count, p->count - p->n_free - p->n_kept, p->n_kept};
}
