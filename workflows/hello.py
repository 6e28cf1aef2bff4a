"""Two modules that exchange tuples."""


def greet(ctx):
    """Greet every copy of the answerer and collect what they say."""
    copies = ctx.copies_of["answerer"]
    for copy_index in range(copies):
        ctx.tuples.tput(("greeting", copy_index), f"{ctx.options['greeting']}, answerer!")
    return sorted(ctx.tuples.tget("answer", timeout=60) for _ in range(copies))


def answer(ctx):
    """Wait for the greeting to this copy and answer it."""
    greeting = ctx.tuples.tget(("greeting", ctx.copy_index), timeout=60)
    ctx.log.info("received %r", greeting)
    ctx.tuples.tput("answer", f"copy {ctx.copy_index} heard {greeting!r}")
