from ._nest import Nest

class Scheduler:
    out: Nest
    def rewrite(self, nest: Nest) -> Nest: ...
