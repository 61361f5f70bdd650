package cli

import (
	"bytes"
	"strings"
	"testing"
)

func TestABarIsForTerminals(t *testing.T) {
	var out bytes.Buffer
	b := &Bar{&out}
	b.At(3, 9, "round 3")
	if b.Done(); !strings.Contains(out.String(), "33.3 % round 3") {
		t.Errorf("it shows %q", out.String())
	}
	out.Reset()
	b = NewBar(&out)
	b.At(1, 2, "x")
	if b.Done(); out.Len() > 0 {
		t.Errorf("%q in a log", out.String())
	}
}
