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
#pragma once

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
