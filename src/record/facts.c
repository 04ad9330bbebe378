/* Gathering the facts. A dataset's folder may have a manifest.json, as scripts/corpus writes it: its
 * hash and its packages are facts of every run on it. */
#include "record/facts.h"

#include "base/json.h"
#include "base/version.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_ROOM = 4096, MACHINE_ROOM = 512, MANIFEST_MOST = 1 << 24 };

/* "bash-doc 5.2.15-2, git-doc 1:2.39.5": NULL where there are none; the caller frees it. */
static char *list_packages(const json_t *manifest) {
    const json_t *packages = json_object_get(manifest, "packages");
    char *text = NULL;
    size_t room = 0, i;
    json_t *one;
    FILE *out = json_array_size(packages) ? open_memstream(&text, &room) : NULL;
    if (!out) return NULL;
    json_array_foreach(packages, i, one) {
        const char *name = json_string_value(json_object_get(one, "package"));
        const char *version = json_string_value(json_object_get(one, "version"));
        if (name) fprintf(out, "%s%s %s", i ? ", " : "", name, version ? version : "");
    }
    if (fclose(out) == 0) return text;
    free(text);
    return NULL;
}

static void add_dataset(json_t *facts, const weft_config *c, const weft_train_result *r) {
    char path[PATH_ROOM];
    if (r->train_tokens > 0)
        json_object_set_new(facts, "train_tokens", json_integer(r->train_tokens));
    if (r->val_tokens > 0) json_object_set_new(facts, "val_tokens", json_integer(r->val_tokens));
    if (snprintf(path, sizeof path, "%s/manifest.json", c->dataset) >= PATH_ROOM) return;
    json_t *manifest = weft_json_file(path, MANIFEST_MOST);
    json_t *hash = json_object_get(manifest, "hash");
    if (json_is_string(hash)) json_object_set(facts, "dataset_hash", hash);
    char *packages = list_packages(manifest);
    if (packages) json_object_set_new(facts, "dataset_packages", json_string(packages));
    free(packages);
    json_decref(manifest);
}

/* loss_at_64_255: the held-out loss of positions 64 to 255. */
static void add_positions(json_t *facts, const weft_train_result *r) {
    for (int i = 0; i < r->n_positions; i++) {
        const weft_position_loss *p = &r->positions[i];
        char name[64];
        snprintf(name, sizeof name, "loss_at_%lld_%lld", (long long)p->first,
                 (long long)p->last - 1);
        if (isfinite(p->loss)) json_object_set_new(facts, name, json_real(p->loss));
    }
}

json_t *weft_facts_of_run(const weft_config *c, const char *device, const weft_train_result *r) {
    char machine[MACHINE_ROOM];
    json_t *facts = json_object();
    if (!facts) return NULL;
    weft_machine_text(machine, sizeof machine);
    json_object_set_new(facts, "commit", json_string(weft_git_commit()));
    json_object_set_new(facts, "machine", json_string(machine));
    json_object_set_new(facts, "device", json_string(device));
    if (r->device_bytes > 0)
        json_object_set_new(facts, "device_bytes", json_integer(r->device_bytes));
    add_dataset(facts, c, r);
    add_positions(facts, r);
    return facts;
}
