# Untested. A Homebrew formula for Linux: brew install --formula packaging/homebrew/weft.rb, after make dist.
class Weft < Formula
  desc "Engine and workbench for transformer architectures"
  url "file://#{File.expand_path("../../build/weft-0.1.0.tar.gz", __dir__)}"
  license "MIT"

  depends_on "make" => :build
  depends_on "pkgconf" => :build
  depends_on "jansson"
  depends_on "libmicrohttpd"
  depends_on :linux
  depends_on "pcre2"
  depends_on "sqlite"
  depends_on "utf8proc"
  depends_on "zlib"
  depends_on "zstd"

  def install
    system "gmake", "install", "SETUP=no", "NVCC=none", "PREFIX=#{prefix}"
  end

  test do
    assert_match "weft #{version}", shell_output("#{bin}/weft version")
    assert_match "parameters", shell_output("#{bin}/weft plan --config demo")
  end
end
