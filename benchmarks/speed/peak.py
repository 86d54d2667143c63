"""This machine's float32 peak: `python -m benchmarks.speed.peak <threads>`"""

import sys

from onyx.memory.planning.speed_choices import product_rate

if __name__ == "__main__":
    print(product_rate(2048, 10, threads=int(sys.argv[1])))
