// Package property checks properties that take long to check.
package property

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"

	"pgregory.net/rapid"
)

// Check runs rapid.Check with a third of its checks; with SLURMBRIDGE_SLOW=1 it runs all. It
// sets a flag of the process, so the test must not be parallel to others.
func Check(t *testing.T, property func(*rapid.T)) {
	t.Helper()
	if checks := flag.Lookup("rapid.checks"); os.Getenv("SLURMBRIDGE_SLOW") == "" {
		all := checks.Value.String()
		n, err := strconv.Atoi(all)
		if err == nil {
			err = checks.Value.Set(fmt.Sprint(max(1, n/3)))
		}
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = checks.Value.Set(all) }()
	}
	rapid.Check(t, property)
}
