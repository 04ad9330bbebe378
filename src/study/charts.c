/* The two files, taken into the program by the assembler: they stay JavaScript and CSS that editors and
 * browsers understand. Paths are from the repository's root, where every build runs. mk/build.mk makes
 * the object anew when one of them changes. */
#include "study/charts.h"

#define TAKE(name, path)                                                                           \
    __asm__(".pushsection .rodata\n"                                                               \
            ".global " name "\n"                                                                   \
            ".hidden " name "\n"                                                                   \
            ".type " name ", %object\n" name ":\n"                                                 \
            ".incbin \"" path "\"\n"                                                               \
            ".byte 0\n"                                                                            \
            ".size " name ", . - " name "\n"                                                       \
            ".popsection\n")

TAKE("weft_charts_script", "src/study/charts.js");
TAKE("weft_charts_style", "src/study/charts.css");
