// Package recordhttp carries records from the nodes to the controller: HTTP with
// a credential (MUNGE's, or of a shared key) that names the sender and binds the body.
//
// A record is one POST of packed JSON. The sender is authenticated before a byte
// of the body is read; what isn't believed is never stored. From the credential the
// controller also learns how far the sender's clock is off.
package recordhttp

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"time"
)

// Path is where records are posted.
const Path = "/v1/records"

// resultHeader of an answer says what became of the record. Without it a 200 is
// some other server's.
const resultHeader = "Slurmbridge-Record"

// Bounds of a record on the wire and unpacked, bytes. The longest series and 1024
// neighbours are about 300 KiB unpacked.
const (
	maxPacked = 1 << 20
	maxBody   = 4 << 20
)

// MinSkew is the difference of two clocks that is taken for one: credentials count
// whole seconds, and are on their way for a while.
const MinSkew = 2 * time.Second

// bind is what the credential carries: the credential of one record is good for
// no other.
func bind(body []byte) string { return bindTo(Path, body) }

// bindTo is bind for what is posted to another path.
func bindTo(path string, body []byte) string {
	sum := sha256.Sum256(body)
	return "slurmbridge " + http.MethodPost + " " + path + " " + hex.EncodeToString(sum[:])
}
