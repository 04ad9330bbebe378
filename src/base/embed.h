/* Files taken into the program by the assembler, so that they stay what editors and browsers understand.
 *
 *   WEFT_EMBED("weft_page_style", "src/report/page.css");
 *   extern const char weft_page_style[];
 *
 * The text ends on a zero. Paths are from the repository's root, where every build runs; mk/build.mk
 * makes the object anew when such a file changes. */
#pragma once

#define WEFT_EMBED(name, path)                                                                     \
    __asm__(".pushsection .rodata\n"                                                               \
            ".global " name "\n"                                                                   \
            ".hidden " name "\n"                                                                   \
            ".type " name ", %object\n" name ":\n"                                                 \
            ".incbin \"" path "\"\n"                                                               \
            ".byte 0\n"                                                                            \
            ".size " name ", . - " name "\n"                                                       \
            ".popsection\n")

/* The style that all pages share, as it is in base/page.css, whose head says how a page uses it. */
extern const char weft_page_style[];
