"""A load test that tells the truth: any embershard service, asked for so much, from processes of their own.

    plan        what is asked for
    arrivals    when, fixed beforehand
    pool        the requests, ready to be sent
    lanes       how they are sent, one after the other on each lane
    sender      sends them, and notes what becomes of each
    pacing      has them sent: when due, or once the last was answered
    generator   one process that does so
    tally       what has become of them
    fleet       several such processes at once
    ramp        the highest rate within a budget
    comparison  with an earlier test
    document    what is told of it
    report      that in words and numbers; page with plots

Latency counts from when a request was to be sent, which is fixed before the first one is: while a service stalls,
requests go on falling due, and each that waits tells of the stall. A generator that asks again only once it was
answered would tell of one slow request (G. Tene calls that coordinated omission). Needs hdrhistogram; never torch.
"""
