# Returns the median of numbers separated by spaces; 0 if there are none.
function median(list,    n, i, j, it, a) {
    n = split(list, a, " ")
    for (i = 2; i <= n; i++) { it = a[i] + 0; for (j = i - 1; j > 0 && a[j] + 0 > it; j--) a[j + 1] = a[j]; a[j + 1] = it }
    return n ? (n % 2 ? a[(n + 1) / 2] : (a[n / 2] + a[n / 2 + 1]) / 2) : 0
}
