/* The generator of the embedded corpus: sentences with their places filled in.
 *
 * A document first draws its cast (who, where, which object, which saying), then draws sentences
 * about it. So whatever is drawn once can be foretold from then on, and the rest cannot: that is
 * what there is to learn. Document n of a sequence has Philox blocks of its own, from n · 65536
 * on; it can be made without those before it. */
#include "data/corpus.h"

/* The words and sentences of the embedded corpus.
 *
 * In a sentence a dollar sign and a letter stand for
 *     H hero         F friend      P place         R the hero's trade
 *     O the object ("brass lantern")   A with its article ("a brass lantern")   o its noun
 *     x another thing with its article, X the same with a capital   n the noun of the last x
 *     N the noun of another thing      v a verb   w a verb with its s   l when or how
 *     s he, she      S He, She     h him, her      p his, her     M His, Her
 *     q the quotation      t the things of the list with "a"      e the same with "the"   E and an s
 *     b a remark in brackets           1, 2, 3 numbers, of which 1 + 2 = 3
 * Only the hero has a pronoun, and the object's noun stands for nothing else in the document. */
#define COUNT(array) ((uint32_t)(sizeof(array) / sizeof *(array)))

static const char *const NAME_STARTS[] = {"Al",   "Bri", "Cor", "Dal", "El",  "Fen", "Gar", "Hal",
                                          "Is",   "Jor", "Kel", "Lor", "Mar", "Nor", "Ol",  "Per",
                                          "Quin", "Ros", "Sel", "Tam", "Ul",  "Ver", "Wil", "Yor"};
static const char *const NAME_MIDDLES[] = {"", "d", "v", "b", "r", "l", "n", "g"};
static const char *const NAME_ENDS[2][6] = {{"en", "ard", "us", "win", "o", "mund"},
                                            {"a", "ella", "ine", "ora", "ith", "anne"}};

static const char *const PLACE_STARTS[] = {"Ash",   "Bram",  "Cold", "Deer",  "East",   "Fair",
                                           "Glen",  "Hazel", "Iron", "King",  "Long",   "Marsh",
                                           "North", "Oak",   "Pine", "Raven", "Stone",  "Thorn",
                                           "Under", "West",  "Wolf", "Red",   "Silver", "Green"};
static const char *const PLACE_ENDS[] = {"ford",  "field", "brook", "wick", "ham",  "bridge",
                                         "haven", "mere",  "dale",  "gate", "hill", "wood"};

static const char *const TRADES[] = {
    "baker",    "miller",     "weaver",  "fisher", "tailor", "potter",  "carpenter",  "gardener",
    "shepherd", "clockmaker", "teacher", "sailor", "hunter", "printer", "blacksmith", "painter"};

/* All take an s. */
static const char *const THINGS[] = {
    "lantern", "key",     "rope",   "candle", "bell",    "cup",    "map",    "hook",
    "coat",    "drum",    "basket", "mirror", "kettle",  "ladder", "needle", "saddle",
    "book",    "boat",    "ring",   "spoon",  "hammer",  "flute",  "chain",  "blanket",
    "button",  "feather", "bottle", "wheel",  "whistle", "jar",    "sack",   "comb"};
static const char *const LOOKS[] = {"small",  "old",      "brass",  "red",     "blue",  "silver",
                                    "wooden", "heavy",    "broken", "painted", "iron",  "green",
                                    "plain",  "round",    "bent",   "bright",  "dusty", "thin",
                                    "golden", "borrowed", "dented", "white",   "black", "narrow"};

/* All take an s. */
static const char *const VERBS[] = {"follow", "hide", "mend",  "trust", "sell", "wake",
                                    "count",  "open", "burn",  "keep",  "lose", "find",
                                    "paint",  "lift", "greet", "spare"};
static const char *const TAILS[] = {
    "before the rain",     "after the harvest",       "when the wind turns",
    "under a full moon",   "at the end of winter",    "while the others sleep",
    "on the way home",     "until the bread is done", "without a word",
    "for the love of it",  "if the river allows",     "as long as the fire burns",
    "between two storms",  "in the middle of May",    "with both hands",
    "out of pure kindness"};

/* What is said. */
static const char *const SAYINGS[] = {"Never $v $x $l",
                                      "$X $w the $N $l",
                                      "Who $w $x must $v $x $l",
                                      "It is better to $v $x than to $v $x $l",
                                      "One does not $v the $N $l",
                                      "First $v $x, then $v $x $l",
                                      "Nobody $w the $N of a friend $l",
                                      "Let us $v $x $l"};

static const char *const OPENINGS[] = {
    "In $P there lived a $R named $H. ", "Long ago a $R called $H lived in $P. ",
    "$H was a $R in the town of $P. ", "Everybody in $P knew the $R $H. "};
static const char *const OWNED[] = {"$S owned $A, and $s never went out without the $o. ",
                                    "On the wall of $p room hung $A; the $o had been a gift. ",
                                    "What $s loved most was $A. The $o shone in the evening. ",
                                    "$M father had left $h $A, and $s kept the $o in a chest. "};
static const char *const FRIENDS[] = {"$M best friend was $F, who lived behind the mill.",
                                      "$S had one friend in $P, and that was $F.",
                                      "Every morning $s met $F at the well.",
                                      "With $F, a neighbour, $s shared every secret."};
static const char *const SAID[] = {
    "One day $F came to the door and said: \"$q.\" ",
    "Over the gate of $P someone had written: \"$q.\" $H read it aloud. ",
    "\"$q,\" said $F on the first day of spring, and $H laughed. ",
    "When $s was young, $p mother used to say: \"$q.\" "};
static const char *const REMEMBERED[] = {"Then $H remembered the words: \"$q.\" ",
                                         "\"$q,\" whispered $H, for now $s knew what it meant. ",
                                         "And $F said once more: \"$q.\" ",
                                         "It was true, what $s had heard: \"$q.\" "};
static const char *const EVENTS[] = {
    "$H walked to the market of $P and bought $x. ",
    "The road out of $P was long, and $H was tired. ",
    "$F lost $x near the bridge, but $H found the $n again. ",
    "At noon it began to rain, so $H and $F waited under a tree. ",
    "$S put the $o on the table and looked at it for a while. ",
    "A stranger asked $H for the $O, but $s would not give it away. ",
    "$F had never seen such $A before. ",
    "That night $s dreamed of $x. ",
    "The other $Rs of $P did not believe $h. ",
    "$H gave $F $x, and $F gave $h $x. ",
    "Somebody had left $x at the door of $H. ",
    "The bells of $P rang three times. ",
    "Before long the whole of $P was talking about the $R and the $O. ",
    "$S cleaned the $o with a cloth until it was bright. ",
    "$F carried $x up the hill, while $H carried the $o. ",
    "It was only $x, yet $H would not sell it. ",
    "In the evening $F told $h about a town far from $P. ",
    "$S went home to $P, tired but glad. "};
static const char *const REMARKS[] = {"Nobody noticed $b that the door was open. ",
                                      "The letter $b lay where $F had left it. ",
                                      "$S looked into every box $b and found nothing. "};
static const char *const PURSES[] = {
    "$H had $1 coins and earned $2 more, so now $s had $3 coins. ",
    "There were $1 sheep on one hill and $2 on the other, which makes $3 sheep. ",
    "From $P it was $1 miles to the river and $2 miles more to the sea: $3 miles. ",
    "Of $3 apples $F ate $1, and $2 apples were left. "};
static const char *const PACKED[] = {"For the journey $H packed $t. ",
                                     "In the cellar $s found $t. ", "$F brought $t. ",
                                     "On the shelf stood $t. "};
static const char *const UNPACKED[] = {"Now all of it was needed: $e. ",
                                       "One by one $H gave away $e. ",
                                       "In the end $s was asked to return $e. "};
static const char *const ENDINGS[] = {
    "So $H kept the $O, and $F never left $P again.",
    "From that day on the $O belonged to $H and $F together.",
    "And if you come to $P, ask for $H the $R, and $s will show you the $O.",
    "That is how $H of $P came to be known for the $O."};
static const char *const LETTERS[] = {"Thank you for $A. The $o stands on my table here in $P. ",
                                      "I hope that the $O reached you. Nobody in $P has such $A. ",
                                      "In $P the weather is fine, and I often look at the $O. "};
static const char *const WROTE[] = {"In your last letter you wrote: \"$q.\" ",
                                    "My neighbour says: \"$q.\" What do you think? ",
                                    "There is a song here that begins: \"$q.\" "};
static const char *const WROTE_AGAIN[] = {"I shall not forget it: \"$q.\" ",
                                          "So, dear $F, \"$q,\" as they say. ",
                                          "Please write it on the wall for me: \"$q.\" "};

enum {
    DOCUMENT_BLOCKS = 65536, /* Philox blocks that a document may draw */
    NAME_ROOM = 16,
    SAYING_ROOM = 160,
    LIST_MAX = 5,
    BRACKET_DEPTH = 4
};

typedef struct {
    weft_random_stream random;
    char *text;
    int64_t length, room;
    char hero[NAME_ROOM], friend[NAME_ROOM], place[NAME_ROOM];
    bool she;
    const char *trade, *object, *look;
    uint32_t object_index;
    char saying[SAYING_ROOM];
    const char *list[LIST_MAX], *list_looks[LIST_MAX];
    uint32_t listed;
    const char *last; /* the noun of the last thing */
    uint32_t numbers[3];
} document;

static uint32_t draw(document *d, uint32_t n) {
    return weft_random_stream_below(&d->random, n);
}

#define PICK(d, array) ((array)[draw(d, COUNT(array))])

/* No document comes near its room; one that did would be cut, not overrun. A line has no space at
 * its end. */
static void put_bytes(document *d, const char *bytes, size_t count) {
    if (bytes[0] == '\n' && d->length && d->text[d->length - 1] == ' ') d->length--;
    if ((int64_t)count > d->room - d->length) count = (size_t)(d->room - d->length);
    memcpy(d->text + d->length, bytes, count);
    d->length += (int64_t)count;
}

static void put(document *d, const char *text) {
    put_bytes(d, text, strlen(text));
}

/* "a brass lantern", "an old key". */
static void put_thing(document *d, const char *article, const char *look, const char *noun) {
    put(d, article);
    put(d, strchr("aeiou", look[0]) ? "n " : " ");
    put(d, look);
    put(d, " ");
    put(d, noun);
}

static const char *draw_thing(document *d) {
    uint32_t at = draw(d, COUNT(THINGS) - 1);
    return THINGS[at + (at >= d->object_index)];
}

static void put_random_thing(document *d, const char *article) {
    d->last = draw_thing(d);
    put_thing(d, article, PICK(d, LOOKS), d->last);
}

/* "(a red cup [an old key] and a bell)": each opening has its closing, and depth its shape. */
static void put_brackets(document *d, int depth) {
    static const char open[BRACKET_DEPTH] = "([{<", close[BRACKET_DEPTH] = ")]}>";
    put_bytes(d, &open[depth], 1);
    put_random_thing(d, "a");
    if (depth + 1 < BRACKET_DEPTH && draw(d, 2)) {
        put(d, " ");
        put_brackets(d, depth + 1);
    }
    if (draw(d, 2)) {
        put(d, " and ");
        put_random_thing(d, "a");
    }
    put_bytes(d, &close[depth], 1);
}

/* The codes that stand for one word; NULL: not one of them. */
static const char *find_word(document *d, char code) {
    static const char codes[] = "HFPRonqsShpM";
    const char *const words[] = {d->hero,
                                 d->friend,
                                 d->place,
                                 d->trade,
                                 d->object,
                                 d->last,
                                 d->saying,
                                 d->she ? "she" : "he",
                                 d->she ? "She" : "He",
                                 d->she ? "her" : "him",
                                 d->she ? "her" : "his",
                                 d->she ? "Her" : "His"};
    if (code == 'N') return draw_thing(d);
    if (code == 'v') return PICK(d, VERBS);
    if (code == 'l') return PICK(d, TAILS);
    const char *at = strchr(codes, code);
    return at ? words[at - codes] : NULL;
}

static void put_place(document *d, char code) {
    const char *word = find_word(d, code);
    if (word) {
        put(d, word);
    } else if (code == 'O') {
        put(d, d->look);
        put(d, " ");
        put(d, d->object);
    } else if (code == 'A') {
        put_thing(d, "a", d->look, d->object);
    } else if (code == 'x' || code == 'X') {
        put_random_thing(d, code == 'x' ? "a" : "A");
    } else if (code == 'w') {
        put(d, PICK(d, VERBS));
        put(d, "s");
    } else if (code == 't' || code == 'e' || code == 'E') {
        /* "a", "a and b", "a, b and c"; each with its look and article, or with "the". */
        for (uint32_t i = 0; i < d->listed; i++) {
            if (i) put(d, i + 1 < d->listed ? ", " : " and ");
            if (code == 't') {
                put_thing(d, "a", d->list_looks[i], d->list[i]);
            } else {
                put(d, "the ");
                put(d, d->list[i]);
                if (code == 'E') put(d, "s");
            }
        }
    } else if (code == 'b') {
        put_brackets(d, 0);
    } else {
        char digits[16];
        int n = snprintf(digits, sizeof digits, "%u", d->numbers[code - '1']);
        put_bytes(d, digits, (size_t)n);
    }
}

static void put_sentence(document *d, const char *sentence) {
    for (;;) {
        size_t run = strcspn(sentence, "$");
        put_bytes(d, sentence, run);
        if (!sentence[run]) return;
        put_place(d, sentence[run + 1]);
        sentence += run + 2;
    }
}

/* Returns whether it is a woman's. */
static bool draw_name(document *d, char name[NAME_ROOM]) {
    uint32_t she = draw(d, 2);
    const char *start = PICK(d, NAME_STARTS), *middle = PICK(d, NAME_MIDDLES);
    snprintf(name, NAME_ROOM, "%s%s%s", start, middle, PICK(d, NAME_ENDS[she]));
    return she;
}

/* `count` events that are not among `told`, a bit each. */
static void put_events(document *d, uint32_t *told, uint32_t count) {
    while (count) {
        uint32_t event = draw(d, COUNT(EVENTS));
        if (*told >> event & 1) continue;
        *told |= 1u << event;
        put_sentence(d, EVENTS[event]);
        count--;
    }
}
_Static_assert(COUNT(EVENTS) <= 32, "a bit each");

static void put_story(document *d) {
    bool packs = draw(d, 2), counts = draw(d, 2), remarks = draw(d, 2);
    uint32_t told = 0;
    put_sentence(d, "The Story of $H and the $O\n\n");
    put_sentence(d, PICK(d, OPENINGS));
    put_sentence(d, PICK(d, OWNED));
    put_sentence(d, PICK(d, FRIENDS));
    put(d, "\n\n");
    put_sentence(d, PICK(d, SAID));
    put_events(d, &told, 1 + draw(d, 3));
    if (packs) put_sentence(d, PICK(d, PACKED));
    if (counts) put_sentence(d, PICK(d, PURSES));
    put_events(d, &told, 1 + draw(d, 3));
    put(d, "\n\n");
    if (remarks) put_sentence(d, PICK(d, REMARKS));
    put_events(d, &told, draw(d, 3));
    if (packs) put_sentence(d, PICK(d, UNPACKED));
    put_sentence(d, PICK(d, REMEMBERED));
    put_sentence(d, PICK(d, ENDINGS));
}

static void put_packing_list(document *d) {
    d->numbers[2] = 0;
    put_sentence(d, "What $H took to $P\n\n");
    for (uint32_t i = 0; i < d->listed; i++) {
        d->last = d->list[i];
        d->numbers[0] = 2 + draw(d, 18);
        d->numbers[2] += d->numbers[0];
        put_sentence(d, "- $1 $ns\n");
    }
    put_sentence(d, "In all $3 things.\n\n$H packed $E and went to $P.");
}

/* Each sum begins with the answer of the one before. */
static void put_sums(document *d) {
    put_sentence(d, "Sums of $H\n\n");
    d->numbers[2] = 1 + draw(d, 60);
    for (uint32_t left = 4 + draw(d, 5); left; left--) {
        uint32_t value = d->numbers[0] = d->numbers[2], other = d->numbers[1] = 1 + draw(d, 39);
        bool less = value > other && (value > 60 || draw(d, 2));
        d->numbers[2] = less ? value - other : value + other;
        put_sentence(d, less ? "$1 - $2 = $3\n" : "$1 + $2 = $3\n");
    }
    put_sentence(d, "The last answer is $3.");
}

int64_t weft_corpus_document(const weft_sequence_place *p, uint32_t number,
                             char text[WEFT_CORPUS_DOCUMENT]) {
    document d = {.text = text, .room = WEFT_CORPUS_DOCUMENT - 3, .last = THINGS[0]};
    d.random = weft_random_stream_at(p, "data.embedded.train", "data.embedded.val",
                                     number * DOCUMENT_BLOCKS);
    uint32_t kind = draw(&d, 16);
    d.she = draw_name(&d, d.hero);
    do
        draw_name(&d, d.friend);
    while (strcmp(d.friend, d.hero) == 0);
    const char *place = PICK(&d, PLACE_STARTS);
    snprintf(d.place, NAME_ROOM, "%s%s", place, PICK(&d, PLACE_ENDS));
    d.trade = PICK(&d, TRADES);
    d.object_index = draw(&d, COUNT(THINGS));
    d.object = THINGS[d.object_index];
    d.look = PICK(&d, LOOKS);
    /* The saying is written where the text goes, then taken away from there. */
    put_sentence(&d, PICK(&d, SAYINGS));
    snprintf(d.saying, SAYING_ROOM, "%.*s", (int)d.length, text);
    d.length = 0;
    /* Two to five things, no noun twice. */
    uint32_t wanted = 2 + draw(&d, LIST_MAX - 1);
    while (d.listed < wanted) {
        const char *noun = draw_thing(&d);
        bool known = false;
        for (uint32_t i = 0; i < d.listed; i++)
            known |= d.list[i] == noun;
        if (known) continue;
        d.list_looks[d.listed] = PICK(&d, LOOKS);
        d.list[d.listed++] = noun;
    }
    d.numbers[0] = 2 + draw(&d, 48);
    d.numbers[1] = 2 + draw(&d, 48);
    d.numbers[2] = d.numbers[0] + d.numbers[1];
    if (kind < 9)
        put_story(&d);
    else if (kind < 12) {
        put_sentence(&d, "A Letter from $H to $F\n\nDear $F,\n\n");
        put_sentence(&d, PICK(&d, LETTERS));
        put_sentence(&d, PICK(&d, WROTE));
        if (draw(&d, 2)) put_sentence(&d, "Please send me $t. ");
        if (draw(&d, 2))
            put_sentence(&d, "I paid $1 coins for the room and $2 for bread, $3 in all. ");
        put_sentence(&d, PICK(&d, WROTE_AGAIN));
        put_sentence(&d, "\n\nYours,\n$H of $P");
    } else if (kind < 14)
        put_packing_list(&d);
    else if (kind < 15)
        put_sums(&d);
    else {
        put_sentence(&d, "Boxes of $P\n\n");
        for (uint32_t left = 2 + draw(&d, 4); left; left--)
            put_sentence(&d, "box $b\n");
        put_sentence(&d, "All boxes belong to $H.");
    }
    d.room = WEFT_CORPUS_DOCUMENT;
    put(&d, "\n\n\n");
    return d.length;
}

void weft_corpus_fill(const weft_sequence_place *p, int64_t time, int32_t *tokens,
                      int32_t *targets) {
    weft_random_stream start =
        weft_random_stream_at(p, "data.embedded.train.start", "data.embedded.val.start", 0);
    char page[WEFT_CORPUS_DOCUMENT];
    int64_t length = weft_corpus_document(p, 0, page);
    int64_t at = weft_random_stream_below(&start, (uint32_t)length);
    uint32_t number = 0;
    tokens[0] = (unsigned char)page[at++];
    for (int64_t t = 0; t < time; t++) {
        if (at == length) {
            length = weft_corpus_document(p, ++number, page);
            at = 0;
        }
        targets[t] = (unsigned char)page[at++];
        if (t + 1 < time) tokens[t + 1] = targets[t];
    }
}
