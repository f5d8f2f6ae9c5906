"""Baseline: the service of tf.data, with a dispatcher and workers in separate processes.

Knows: TensorFlow. Does not know: Cotswold.

A NumPy function cannot leave its process, so the same transform is TensorFlow's operation in C++; its batches
are (n, y, x, channel).
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from multiprocessing.queues import Queue
from typing import Any

import numpy as np

from baselines.common import DEGREES, SCALE, SHIFT, LoaderSettings, images, measured


def dispatch(told: Queue[str]) -> None:
    """Run the dispatcher and send its address."""
    import tensorflow as tf

    server = tf.data.experimental.service.DispatchServer()
    told.put(server.target.partition("://")[2])
    server.join()


def work(dispatcher: str) -> None:
    """Run a worker on one core."""
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    config = tf.data.experimental.service.WorkerConfig(dispatcher_address=dispatcher)
    tf.data.experimental.service.WorkerServer(config).join()


def batches(feeding: LoaderSettings, dispatcher: str) -> Iterator[Any]:
    """Yield batches of endless epochs; each worker draws from the whole set in its own order."""
    import tensorflow as tf

    whole = tf.constant(np.ascontiguousarray(images(feeding).transpose(0, 2, 3, 1)))
    height, width = whole.shape[1:3]
    most = np.radians(DEGREES)

    def moved(numbers: Any) -> Any:
        given = tf.cast(tf.gather(whole, numbers), tf.float32) * feeding.scale + feeding.offset
        count = tf.shape(numbers)[0]
        turn = tf.random.uniform([count], -most, most)
        scale = 1 / tf.random.uniform([count], 1 - SCALE, 1 + SCALE)
        cosine, sine = tf.cos(turn) * scale, tf.sin(turn) * scale
        across = tf.random.uniform([count], -width * SHIFT, width * SHIFT)
        down = tf.random.uniform([count], -height * SHIFT, height * SHIFT)
        x, y = (width - 1) / 2, (height - 1) / 2
        nothing = tf.zeros([count])
        table = [
            cosine,
            -sine,
            x + across - cosine * x + sine * y,
            sine,
            cosine,
            y + down - sine * x - cosine * y,
            nothing,
            nothing,
        ]
        return tf.raw_ops.ImageProjectiveTransformV3(
            images=given,
            transforms=tf.stack(table, 1),
            output_shape=[height, width],
            fill_value=0.0,
            interpolation="BILINEAR",
            fill_mode="CONSTANT",
        )

    service = tf.data.experimental.service
    data = (
        tf.data.Dataset.range(whole.shape[0])
        .repeat()
        .shuffle(60_000)
        .batch(feeding.batch, drop_remainder=True)
        .map(moved)
        .apply(service.distribute(processing_mode=service.ShardingPolicy.OFF, service=f"grpc://{dispatcher}"))
        .prefetch(4)
    )
    yield from data.as_numpy_iterator()


def main() -> None:
    """Start the service, measure, end it."""
    asked = LoaderSettings.asked()
    own = multiprocessing.get_context("spawn")
    told = own.Queue()
    started = [own.Process(target=dispatch, args=(told,), daemon=True)]
    started[0].start()
    dispatcher = told.get(timeout=120)
    started += [
        own.Process(target=work, args=(dispatcher,), daemon=True) for _ in range(max(asked.workers, 1))
    ]
    for each in started[1:]:
        each.start()
    try:
        measured(asked, batches(asked, dispatcher), "TensorFlow's own")
    finally:
        for each in started:
            each.kill()


if __name__ == "__main__":
    main()
