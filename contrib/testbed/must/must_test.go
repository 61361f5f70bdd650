package must

import (
	"fmt"
	"math"
	"os"
	"testing"
)

type counter struct {
	testing.TB
	failed int
}

func (c *counter) Helper()               {}
func (c *counter) Errorf(string, ...any) { c.failed++ }

func TestEqualTellsValuesApart(t *testing.T) {
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

func TestChecksFail(t *testing.T) {
	c := &counter{TB: t}
	full := fmt.Errorf("write: %w", os.ErrExist)
	Near(c, 1, 1.5, .5)
	Contain(c, "abc", "b")
	Is(c, full, os.ErrExist)
	Fail(c, full, "write")
	if c.failed != 0 {
		t.Errorf("%d fail that hold", c.failed)
	}
	Near(c, 1, 1.5, .4)
	Near(c, math.NaN(), 1, 1)
	Contain(c, "abc", "d", "job %d", 3)
	Is(c, nil, os.ErrExist)
	Fail(c, full, "open")
	Fail(c, nil, "")
	if c.failed != 6 {
		t.Errorf("%d of 6 fail", c.failed)
	}
}
