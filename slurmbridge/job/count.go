package job

import "strconv"

// Count is a number of things in words: "1 job", "3 jobs". noun is the singular.
func Count(n int, noun string) string {
	text := strconv.Itoa(n) + " " + noun
	if n != 1 {
		text += "s"
	}
	return text
}
