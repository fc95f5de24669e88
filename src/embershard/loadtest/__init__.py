"""A load test that tells the truth: any embershard service, asked for so much, from processes of their own.

    plan        what is asked for
    arrivals    when, fixed beforehand
    pool        the requests, ready to be sent
    lanes       how they are sent, one after the other on each lane
    generator   one process that sends them
    tally       what has become of them
    fleet       several such processes at once
    ramp        the highest rate within a budget
    report      what is told of it; page, plots and comparison show it

Latency counts from when a request was to be sent, which is fixed before the first one is: while a service stalls,
requests go on falling due, and each that waits tells of the stall. A generator that asks again only once it was
answered would tell of one slow request (G. Tene calls that coordinated omission). Needs hdrhistogram; never torch.
"""
