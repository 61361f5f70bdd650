package credential

import (
	"strings"
	"testing"
)

// Whatever unmunge prints, a credential is only read from lines that stand before
// the payload.
func FuzzParse(f *testing.F) {
	f.Add("STATUS: Success (0)\nENCODE_TIME: 2026-01-01 (1767225600)\nUID: root (0)\n\npayload")
	f.Add("STATUS: Expired credential (15)\nUID: a(b) (1000)\n")
	f.Add("\n\nUID: root (0)")
	f.Add("UID: root (-1)\nSTATUS: x (99999999999999999999)\n\n")
	f.Fuzz(func(t *testing.T, out string) {
		c, status := parse(out)
		head, payload, _ := strings.Cut(out, "\n\n")
		if c != nil && (!strings.Contains(head, "UID") || c.Payload != payload) {
			t.Errorf("%q: %+v", out, c)
		}
		if status != -1 && !strings.Contains(head, "STATUS") {
			t.Errorf("%q: status %d", out, status)
		}
	})
}
