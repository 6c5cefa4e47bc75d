import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from hours import is_open


class IsOpen(unittest.TestCase):
    def test_by_day(self):
        self.assertTrue(is_open("08:00-17:00", "08:00"))
        self.assertTrue(is_open("08:00-17:00", "16:59"))
        self.assertFalse(is_open("08:00-17:00", "17:00"))
        self.assertFalse(is_open("08:00-17:00", "07:59"))


if __name__ == "__main__":
    unittest.main()
