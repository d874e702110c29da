# FIN-77: steady temperature of a cooling fin with an insulated tip, by finite differences.
#
#     awk -f fin77.awk DECK > LISTING
#
# It reads a deck of cards, keyword in columns 1-10 and value in columns 11-26, and prints a listing.
# Exit code 0 after "NORMAL END OF RUN", 8 after "ABNORMAL END".

BEGIN {
    split("LENGTH AREA PERIMETER CONDUCT FILM BASETEMP AIRTEMP NODES", WANTED)
    print "1FIN-77  RELEASE 4.2                                          PAGE    1"
    print "0ECHO OF INPUT DECK"
}

/^\*/ { next }

{
    print "     " $0
    keyword = substr($0, 1, 10)
    sub(/ +$/, "", keyword)
    if (keyword == "END") exit
    text = substr($0, 11, 16)
    gsub(/ /, "", text)
    if (text !~ /^[-+]?[0-9]*\.?[0-9]+([EeDd][-+]?[0-9]+)?$/) abnormal("CARD " NR " HAS NO NUMBER")
    sub(/[Dd]/, "E", text)
    card[keyword] = text + 0.0
}

END {
    if (failed) exit 8
    for (i = 1; i in WANTED; i++) {
        if (!(WANTED[i] in card)) abnormal("CARD " WANTED[i] " IS MISSING")
        if (card[WANTED[i]] <= 0.0) abnormal("CARD " WANTED[i] " IS NOT POSITIVE")
    }
    solve(int(card["NODES"]))
    print "0FINAL TEMPERATURES"
    print "0  NODE         X (M)      TEMP (K)"
    for (i = 1; i <= n; i++) printf "%7d%15.7E%15.8E\n", i, (i - 1) * dx, temp[i]
    # Second-order one-sided difference at the base.
    slope = (-3.0 * temp[1] + 4.0 * temp[2] - temp[3]) / (2.0 * dx)
    printf "0HEAT FLOW AT BASE (W) =%16.8E\n", -card["CONDUCT"] * card["AREA"] * slope
    print " NORMAL END OF RUN"
}

# Conduction along the fin balances the loss through its sides: a tridiagonal system.
function solve(nodes,    beta, i, factor) {
    n = nodes
    if (n < 3) abnormal("NODES IS BELOW 3")
    dx = card["LENGTH"] / (n - 1)
    beta = card["FILM"] * card["PERIMETER"] / (card["CONDUCT"] * card["AREA"]) * dx * dx
    upper[1] = 0.0
    temp[1] = card["BASETEMP"] - card["AIRTEMP"]
    for (i = 2; i <= n; i++) {
        # The tip is insulated: the node beyond it mirrors the one before it.
        lower = (i == n) ? -2.0 : -1.0
        factor = 2.0 + beta - lower * upper[i - 1]
        upper[i] = -1.0 / factor
        temp[i] = -lower * temp[i - 1] / factor
    }
    for (i = n - 1; i >= 2; i--) temp[i] -= upper[i] * temp[i + 1]
    for (i = 1; i <= n; i++) temp[i] += card["AIRTEMP"]
}

function abnormal(why) {
    print " ABNORMAL END: " why
    failed = 1
    exit 8
}
