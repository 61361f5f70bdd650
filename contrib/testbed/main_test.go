package main

import (
	"os"
	"regexp"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// What the Makefile calls is there, with the flags that it passes.
func TestMakefile(t *testing.T) {
	text := must.Get(os.ReadFile("../../Makefile"))(t)
	calls := regexp.MustCompile(`\$\(call STAGE,(\w+)\)(.*)`).FindAllStringSubmatch(string(text), -1)
	must.Equal(t, len(calls), 5, "calls")
	for _, call := range calls {
		c, _, err := root().Find([]string{call[1]})
		if err != nil || c.Name() != call[1] || c.Short == "" {
			t.Errorf("testbed %s: %v", call[1], err)
			continue
		}
		for _, flag := range regexp.MustCompile(`--(\w+)`).FindAllStringSubmatch(call[2], -1) {
			if c.Flag(flag[1]) == nil {
				t.Errorf("testbed %s takes no --%s", call[1], flag[1])
			}
		}
	}
}
