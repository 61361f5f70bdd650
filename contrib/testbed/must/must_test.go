package must

import "testing"

type counter struct {
	testing.TB
	failed int
}

func (c *counter) Helper()               {}
func (c *counter) Errorf(string, ...any) { c.failed++ }

func TestEqual(t *testing.T) {
	c := &counter{TB: t}
	Equal(c, 1, 1)
	Equal(c, []string{}, nil)
	Equal(c, map[string]int{"a": 1}, map[string]int{"a": 1})
	if c.failed != 0 {
		t.Errorf("%d of equal values fail", c.failed)
	}
	Equal(c, 1, 2, "job %d", 3)
	Equal(c, "a", "b", "100 %")
	Equal(c, []string{"a"}, nil)
	if c.failed != 3 {
		t.Errorf("%d of 3 different values fail", c.failed)
	}
}
