/* BYTES_SOURCE, a header of functions BYTES(name), for each of x86-64's instructions for products of bytes
 * or of pairs that this instruction set may have: madd_, and vnni_ where BYTES_VNNI. */
#define BYTES(name) madd_##name
#define BYTES_TARGET
#include BYTES_SOURCE

#if BYTES_VNNI
#define BYTES(name) vnni_##name
#define BYTES_TARGET VNNI_TARGET
#include BYTES_SOURCE
#endif

#undef BYTES_SOURCE
