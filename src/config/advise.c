/* What can be read and checked and is still not what was meant: keys that change nothing under the
 * kinds chosen, and settings that undo each other. One warning line each, with the remedy.
 *
 * When an option matters is the table's `depends`, in Kconfig's language: KEY, KEY = "word",
 * KEY != "word", joined by && and ||, of which && binds closer. */
#include "config/config.h"

#include "base/log.h"

#include <ctype.h>

enum { NAMED = 4, KEY_ROOM = 64, LIST_ROOM = 512 };

static const char *skip_blanks(const char *at) {
    return at + strspn(at, " ");
}

/* KEY, KEY = "word" or KEY != "word" at *at, which moves past it. */
static bool test_value(const weft_config *c, const char **at) {
    char key[KEY_ROOM], value[WEFT_TEXT_MAX];
    const char *from = skip_blanks(*at), *end = from;
    while (isalnum((unsigned char)*end) || *end == '_')
        end++;
    snprintf(key, sizeof key, "%.*s", (int)(end - from), from);
    const weft_option *o = weft_option_find(key);
    if (!o) return true; /* the table names an option that is not there: it hides nothing */
    weft_config_format(c, o, value, sizeof value);
    end = skip_blanks(end);
    bool unequal = end[0] == '!' && end[1] == '=';
    if (*end != '=' && !unequal) {
        *at = end;
        return strcmp(value, "y") == 0;
    }
    const char *word = strchr(end, '"'), *close = word ? strchr(word + 1, '"') : NULL;
    if (!close) return true;
    size_t length = (size_t)(close - word - 1);
    bool equal = strlen(value) == length && strncmp(value, word + 1, length) == 0;
    *at = close + 1;
    return equal != unequal;
}

bool weft_option_matters(const weft_config *c, const weft_option *o) {
    const char *at = o->depends;
    bool any = false, all = true;
    if (!*skip_blanks(at)) return true;
    for (;;) {
        all = test_value(c, &at) && all;
        at = skip_blanks(at);
        bool both = at[0] == '&' && at[1] == '&', either = at[0] == '|' && at[1] == '|';
        if (both || either) at += 2;
        if (both) continue;
        any = any || all;
        all = true;
        if (!either) return any;
    }
}

static bool was_meant(const weft_config *c, const weft_option *o) {
    weft_config plain;
    int count, given = 0;
    const weft_option *options = weft_options(&count);
    if (!c->given[o - options] || o->owner == WEFT_OWNER_STUDY) return false;
    /* A file that has most of them was written by a menu or a run, which says nothing of what was meant. */
    for (int i = 0; i < count; i++)
        given += c->given[i];
    if (2 * given < count) return true;
    weft_config_defaults(&plain);
    return !weft_option_same(c, &plain, o);
}

/* Given in one of the configs, and without effect in all of them. */
static bool is_idle(const weft_config *const *configs, int n, const weft_option *o) {
    bool meant = false;
    for (int i = 0; i < n; i++) {
        if (weft_option_matters(configs[i], o)) return false;
        meant = meant || was_meant(configs[i], o);
    }
    return meant;
}

/* One line for all the keys that wait for the same thing as the first of them. */
static void warn_idle(const weft_config *const *configs, int n, const char *where,
                      const weft_option *first) {
    char names[LIST_ROOM] = "";
    int found = 0;
    for (const weft_option *o = first; o->key; o++) {
        if (strcmp(o->depends, first->depends) != 0 || !is_idle(configs, n, o)) continue;
        size_t at = strlen(names);
        if (found++ < NAMED)
            snprintf(names + at, sizeof names - at, "%sCONFIG_%s", at ? ", " : "", o->key);
    }
    size_t at = strlen(names);
    if (found > NAMED) snprintf(names + at, sizeof names - at, " and %d more", found - NAMED);
    bool one = found == 1;
    weft_log(WEFT_LOG_WARN, "%s: %s %s nothing here: %s where %s; set that, or leave %s out", where,
             names, one ? "changes" : "change", one ? "it matters" : "they matter", first->depends,
             one ? "it" : "them");
}

void weft_config_advise(const weft_config *const *configs, int n, const char *where) {
    if (n < 1) return;
    for (const weft_option *o = weft_options(NULL); o->key; o++) {
        bool told = !is_idle(configs, n, o);
        for (const weft_option *k = weft_options(NULL); k < o && !told; k++)
            told = strcmp(k->depends, o->depends) == 0 && is_idle(configs, n, k);
        if (!told) warn_idle(configs, n, where, o);
    }
    for (int i = 0; i < n; i++) {
        const weft_config *c = configs[i];
        if (c->prune == WEFT_PRUNING_NONE || c->prune_end < c->steps) continue;
        weft_log(WEFT_LOG_WARN,
                 "%s: CONFIG_PRUNE_END=%lld is not before the run's end, CONFIG_STEPS=%lld: "
                 "CONFIG_PRUNE_SPARSITY is not reached; take an earlier step",
                 where, (long long)c->prune_end, (long long)c->steps);
        break;
    }
    for (int i = 0; i < n; i++) {
        const weft_config *c = configs[i];
        /* A reset begins a warm-up; the next one comes before that has ended. */
        bool endless = c->optimizer == WEFT_OPTIMIZER_ADAMWSPAM && c->spam_periodic_reset &&
                       c->spam_warmup && c->spam_interval <= c->spam_warmup_steps &&
                       c->steps > c->spam_interval;
        if (!endless) continue;
        weft_log(WEFT_LOG_WARN,
                 "%s: CONFIG_SPAM_INTERVAL=%lld is not above CONFIG_SPAM_WARMUP_STEPS=%lld: after "
                 "the first reset the rate never stays at what was given; take a longer interval "
                 "or a shorter warm-up",
                 where, (long long)c->spam_interval, (long long)c->spam_warmup_steps);
        return;
    }
}
