package cli

import (
	"bytes"
	"strings"
	"testing"
)

// TestBar: it ends however early it is told to, and shows how far things are.
func TestBar(t *testing.T) {
	for range 3 {
		startBar(&bytes.Buffer{}).Done()
	}
	var out bytes.Buffer
	b := startBar(&out)
	b.At(3, 9, "round 3")
	b.Done()
	if !strings.Contains(out.String(), "round 3") {
		t.Errorf("it shows %q", out.String())
	}
	b = NewBar(&out) // no terminal
	b.At(1, 2, "x")
	b.Done()
}
