"""python -m flowengine.testing.simulator"""

from flowengine.testing.simulator.main import main

main()
