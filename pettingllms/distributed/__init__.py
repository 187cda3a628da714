"""More than one process, on Ray: workers that play, and a learner for each policy.

    driver --- tasks of a shard, weights ---> RolloutWorker x N    environment, sandbox, sampler
       ^------ trajectories -----------------'
       '------ each policy's completions ---> Learner              all at the same time
       ^------ metrics, new weights ---------'

Playing is a pure function of what a worker is given, so a lost worker's job is done again by another
(`Fleet`). A learner is not pure: the driver keeps its last state and the updates since, and makes a
lost one again by repeating them (`JournaledActor`). Whoever dies, and however many work, the numbers are those of
one process. Nothing that must survive is owned by an actor.
"""

import gc

# As in commands (`pettingllms.cli`): the imports of a process of Ray take a fifth less time.
gc.set_threshold(50_000)
