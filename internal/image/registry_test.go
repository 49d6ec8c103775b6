package image_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// testRegistry is a running docker-registry process.
type testRegistry struct {
	addr string
	dir  string         // its storage
	pool *x509.CertPool // of its certificate, or nil
}

const (
	registryUser     = "alice"
	registryPassword = "s3cret:with:colons"
	// bcrypt of registryPassword, the only form docker-registry takes
	registryHtpasswd = "alice:$2b$10$abcdefghijklmnopqrstuuTlB4PuAJE.sdahXznEDIysm2duSqkGW\n"
)

// startRegistry runs docker-registry on a loopback port until the test ends;
// secure: with TLS and a login.
func startRegistry(t *testing.T, secure bool) *testRegistry {
	t.Helper()
	bin := needTool(t, "docker-registry")
	dir := t.TempDir()
	r := &testRegistry{addr: freePort(t), dir: filepath.Join(dir, "data")}
	config := fmt.Sprintf("version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nstorage:\n  filesystem: {rootdirectory: %q}\n  delete: {enabled: true}\nhttp:\n  addr: %q\n", r.dir, r.addr)
	scheme := "http"
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	if secure {
		scheme = "https"
		r.pool = writeCertificate(t, dir)
		client.Transport = transportFor(r.pool)
		writeFile(t, filepath.Join(dir, "htpasswd"), registryHtpasswd)
		config += fmt.Sprintf("  tls: {certificate: %q, key: %q}\nauth:\n  htpasswd: {realm: test, path: %q}\n",
			filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "htpasswd"))
	}
	writeFile(t, filepath.Join(dir, "config.yml"), config)
	var log bytes.Buffer
	cmd := exec.Command(bin, "serve", filepath.Join(dir, "config.yml"))
	cmd.Env = append(os.Environ(), "OTEL_TRACES_EXPORTER=none")
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { cmd.Wait(); close(done) }()
	t.Cleanup(func() { cmd.Process.Kill(); <-done })

	deadline := time.Now().Add(30 * time.Second)
	for {
		resp, err := client.Get(scheme + "://" + r.addr + "/v2/")
		if err == nil {
			resp.Body.Close()
			return r
		}
		select {
		case <-done:
			t.Fatalf("docker-registry ended: %s", log.String())
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("docker-registry does not answer: %v\n%s", err, log.String())
		}
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func writeCertificate(t *testing.T, dir string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test registry"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	writeFile(t, filepath.Join(dir, "cert.pem"), string(cert))
	writeFile(t, filepath.Join(dir, "key.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})))
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(cert)
	return pool
}

// push copies an image of an OCI layout to the registry with skopeo.
func (r *testRegistry) push(t *testing.T, layout, name string, args ...string) string {
	t.Helper()
	return r.pushFrom(t, "oci:"+layout, name, args...)
}

// pushFrom is push from any of skopeo's transports.
func (r *testRegistry) pushFrom(t *testing.T, from, name string, args ...string) string {
	t.Helper()
	ref := r.addr + "/" + name
	all := append([]string{"copy", "-q", "--insecure-policy", "--dest-tls-verify=false"}, args...)
	run(t, "skopeo", append(all, from, "docker://"+ref)...)
	return ref
}

// put uploads a manifest by hand.
func (r *testRegistry) put(t *testing.T, name, tag, mediaType, body string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPut, "http://"+r.addr+"/v2/"+name+"/manifests/"+tag, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", mediaType)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		var b bytes.Buffer
		b.ReadFrom(resp.Body)
		t.Fatalf("put manifest: %s: %s", resp.Status, b.String())
	}
}

// blobPath is where the registry keeps a blob.
func (r *testRegistry) blobPath(hex string) string {
	return filepath.Join(r.dir, "docker/registry/v2/blobs/sha256", hex[:2], hex, "data")
}

// needTool finds a program that the tests need; they are in the Debian packages
// of the same name.
func needTool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed on this machine (apt-get install %s)", name, name)
	}
	return path
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(needTool(t, name), args...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}
