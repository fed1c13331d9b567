class A:
    def run(self):
        return 10

class B:
    def run(self):
        return 20
