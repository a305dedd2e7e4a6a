"""Plain functions are operators: fan out to two, join their results by sample id, collect."""

from flowengine import Graph, Step, run
from flowengine.api import Operator, Source


class Numbers(Source[int]):
    total: int = 10

    def read(self, index: int) -> int:
        return index + 1

    def num_samples(self) -> int:
        return self.total


def square(number: int) -> int:
    return number * number


def cube(number: int) -> int:
    return number**3


def difference(cubed: int, squared: int) -> int:
    return cubed - squared


class Print(Operator):
    def process(self, value: int) -> None:
        print(value, end=" ", flush=True)


if __name__ == "__main__":
    graph = Graph("functions", step=Step(samples=5))
    numbers = graph.add(Numbers(total=10))
    cubes, squares = graph.add(cube, numbers), graph.add(square, numbers, replicas=2)
    graph.add(Print(), graph.add(difference, cubes, squares))
    run(graph)
    print()
