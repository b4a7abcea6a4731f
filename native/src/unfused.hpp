// Included after all others by files whose doubles must be the same bits everywhere: a product and a sum that are fused
// round once instead of twice.
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif
