# Prints r and the next four points of the orbit after a thousand steps.
BEGIN {
    r = 1 + task / 10
    x = 0.5
    for (step = 0; step < 1000; step++) {
        x = r * x * (1 - x)
        if (x < 0 || x > 1) {
            print "r = " r ": it has left [0, 1] at step " step > "/dev/stderr"
            exit 1
        }
    }
    line = r
    for (step = 0; step < 4; step++) {
        line = line " " x
        x = r * x * (1 - x)
    }
    print line
}
