// Package pattern has regular expressions that are compiled when they are first needed: each job starts the hooks'
// program four times, which needs few of them, and compiling all took an eighth of its time on a processor.
package pattern

import (
	"regexp"
	"sync"
)

// Lazy returns the regular expression at its first call. One that isn't valid panics then.
func Lazy(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}
