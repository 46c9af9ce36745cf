"""Five solved problems that are shown before each question."""


def list_examples() -> list[dict[str, str]]:
    """Returns problems and solutions, one for each kind of answer; written for this project."""
    return [
        {"Question": question, "solution": solution}
        for question, solution in (
            (
                "A fair die is rolled until a six appears for the first time. What is the expected "
                "number of rolls?",
                "The number of rolls is geometric with success probability p = 1/6. The mean of a "
                "geometric distribution is 1/p, so the expected number is 1/(1/6) = 6.\n"
                "The answer is 6.",
            ),
            (
                "What is the area between the curves y = x and y = x^2 from x = 0 to x = 1?",
                "On [0, 1] the line lies above the parabola. The area is the integral of x - x^2, "
                "which is 1/2 - 1/3 = 1/6, about 0.1667.\nThe answer is 0.1667.",
            ),
            (
                "Does every continuous function on a closed and bounded interval attain its "
                "maximum there? Answer True or False.",
                "A closed and bounded interval is compact. By the extreme value theorem, a "
                "continuous function on a compact set attains its maximum.\nThe answer is True.",
            ),
            (
                "What are the eigenvalues of the matrix [[4, 1], [2, 3]]? Give them as a list in "
                "ascending order.",
                "The trace is 7 and the determinant is 4*3 - 1*2 = 10. The characteristic equation "
                "is t^2 - 7t + 10 = 0, that is (t - 2)(t - 5) = 0.\nThe answer is [2, 5].",
            ),
            (
                "Which data structure gives the smallest of n numbers in constant time after it "
                "was built? (a) a min-heap (b) an unsorted list (c) a stack",
                "The root of a min-heap is its smallest element and is read in constant time. An "
                "unsorted list and a stack have to be searched.\nThe answer is (a).",
            ),
        )
    ]
